"""Templates that would take all time or memory end in a RequestError, soon."""

import contextlib
import json
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyvt.errors import RequestError
from pyvt.tokenizer import ChatTemplate
from pyvt.tokenizer.template_limits import Limits

FAST = Limits(time_s=0.3, max_value=100_000, max_total=1_000_000)
MAX_EXTRA_KIB = 150_000


def render(source: str, limits: Limits = FAST) -> str:
    messages = [{"role": "user", "content": "<x>" * 10}]
    return (
        ChatTemplate({"default": source}, {}, control_texts=("<|x|>",), limits=limits)
        .render(messages)
        .text
    )


def doubling(step: str, shown: str = "{{ ns.x }}") -> str:
    """Return a template that takes a step 60 times."""
    return (
        "{% set ns = namespace(x='x', y=0) %}{% for i in range(60) %}"
        + step
        + "{% endfor %}"
        + shown
    )


BOMBS = [
    pytest.param("{% for i in range(10**9) %}x{% endfor %}", "Range too big", id="range"),
    pytest.param(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "ran for more than 0.3 s",
        id="nested loops",
    ),
    pytest.param(
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "ran for more than 0.3 s",
        id="macro tree",
    ),
    pytest.param("{{ 'x' * 10**9 }}", "over 100000 characters", id="times"),
    pytest.param("{{ 10**9 * 'x' }}", "over 100000 characters", id="times, turned"),
    pytest.param("{{ ([0] * 10**9) | length }}", "over 100000 characters", id="list times"),
    pytest.param("{{ 10 ** (10 ** 9) }}", "over 4096 bits", id="power"),
    pytest.param(doubling("{% set ns.y = (ns.y + 9) * (ns.y + 9) %}"), "4096 bits", id="squares"),
    pytest.param(doubling("{% set ns.x = ns.x + ns.x %}"), "over 100000", id="plus"),
    pytest.param(doubling("{% set ns.x = ns.x ~ ns.x %}"), "over 100000", id="tilde"),
    pytest.param(doubling("{% set ns.x = [ns.x, ns.x] %}"), "over 100000", id="list of lists"),
    pytest.param(doubling("{% set ns.x = (ns.x, ns.x) %}"), "over 100000", id="tuple of tuples"),
    pytest.param(doubling("{% set ns.x = {'a': ns.x, 'b': ns.x} %}"), "over 100000", id="dicts"),
    pytest.param(doubling("{% set ns.x = dict(a=ns.x, b=ns.x) %}"), "over 100000", id="dict calls"),
    pytest.param(
        doubling("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"), "over 100000", id="set"
    ),
    pytest.param(doubling("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"), "over 100000", id="format op"),
    pytest.param(doubling("{% set ns.x = '%s%s' | format(ns.x, ns.x) %}"), "100000", id="format"),
    pytest.param(doubling("{% set ns.x = '{0}{0}'.format(ns.x) %}"), "100000", id="format method"),
    pytest.param(
        doubling("{% set ns.x = ns.x.replace('x', 'xx') %}"), "100000", id="replace method"
    ),
    pytest.param(doubling("{% set ns.x = ns.x | replace('x', 'xx') %}"), "100000", id="replace"),
    pytest.param(doubling("{% set ns.x = [ns.x, ns.x] | join %}"), "over 100000", id="join"),
    pytest.param(
        doubling("{% set ns.x = ns.x.join(['x', 'x', 'x']) %}"), "100000", id="join method"
    ),
    pytest.param(
        "{{ ('x' * 9999).join('x' * 9999) }}", "over 100000", id="join method, characters"
    ),
    pytest.param(
        "{{ ('x' * 9999).join(range(9999) | map('string')) }}", "100000", id="join method, iterator"
    ),
    pytest.param("{{ 'x'.center(10**9) }}", "a width of 1000000000", id="center"),
    pytest.param("{{ 'x' | center(10**9) }}", "a width of 1000000000", id="center filter"),
    pytest.param("{{ '%1000000000d' % 1 }}", "field of millions", id="wide field"),
    pytest.param("{{ '%*d' % (10**9, 1) }}", "a width of 1000000000", id="star field"),
    pytest.param("{{ '{:>1000000000}'.format(1) }}", "field of millions", id="wide format"),
    pytest.param("{{ '{:{}}'.format(1, 10**9) }}", "a width of 1000000000", id="nested format"),
    pytest.param("{{ [1] | tojson(indent=10**6) }}", "an indent of", id="tojson indent"),
    pytest.param("{{ 'a\n' * 999 | indent(10**6) }}", "an indent of", id="indent"),
    pytest.param("{{ ([[0] * 99] * 99) | sum(start=[]) }}", "sum: expected numbers", id="sum"),
    pytest.param("{{ 'x\t'.expandtabs(10**6) }}", "expandtabs", id="expandtabs"),
    pytest.param("{{ (5).to_bytes(10**9, 'big') }}", "to_bytes", id="to_bytes"),
    pytest.param("{{ lipsum(10**6) }}", "'lipsum' is undefined", id="lipsum"),
    pytest.param("{% for i in range(9999) %}{{ 'x' * 999 }}{% endfor %}", "100000", id="output"),
    pytest.param(
        "{% for i in range(9999) %}{% set x = 'y' * 99999 %}{% endfor %}",
        "over 1000000 characters in all",
        id="sum of values",
    ),
]

# Cheap to write, gigabytes to run: refused under the limits that models get, before it is made.
LARGE_BOMBS = [
    pytest.param("{{ ('{0:999999}' * 2000).format('a') }}", id="widths below a million"),
    pytest.param("{{ ('%999999d' * 2000) % ((1,) * 2000) }}", id="widths of %"),
    pytest.param("{{ ('%.999999f' * 2000) % ((1.5,) * 2000) }}", id="precisions of %"),
    pytest.param("{{ ('%*d' * 1000) % ((999999, 1) * 1000) }}", id="width from a value, %"),
    pytest.param("{{ ('{0:{1}}' * 2000).format('a', 999999) }}", id="width from a value"),
    pytest.param("{{ '{0[a]:{0[b]}}'.format({'a': 1, 'b': 10**9}) }}", id="width from a dict"),
    pytest.param("{{ ('{0}' * 900000).format(2**900) }}", id="digits"),
    pytest.param("{{ ([2**2000] * 1000000) | string }}", id="list of digits"),
    pytest.param("{{ ((['x'[1:]] * 400000) * 60) | length }}", id="empty strings"),
    pytest.param("{{ ((',' * 399999).split(',') * 60) | length }}", id="empty parts"),
    pytest.param(
        "{% set ns = namespace(a=range(99999) | list) %}"
        "{% for i in range(50) %}{% set ns.a = [ns.a] %}{% endfor %}"
        "{{ ns.a | tojson(indent=256) }}",
        id="indents of JSON",
    ),
    pytest.param(
        "{{ range(99999) | list | tojson(separators=('x' * 99999, ':')) }}", id="separators of JSON"
    ),
    pytest.param("{{ strftime_now('%999999Y' * 100000) }}", id="wide years"),
]

# What may end well or not, but soon.
ODDITIES = [
    pytest.param("{{ range(99999) | list | length }}" * 5, id="range is bounded"),
    pytest.param(
        "{% for x in [[1, 2]] recursive %}{{ loop([[x, x]]) }}{% endfor %}", id="loop recursion"
    ),
    pytest.param(doubling("{% set ns.y = namespace(a=ns.y, b=ns.y) %}", "{{ [ns.y] }}"), id="ns"),
    pytest.param("{{ 'x'.zfill(width=10**9) }}", id="zfill"),
    pytest.param("{{ ['x' * 999] | map('center', 99999) | list * 99 }}", id="map"),
]


@pytest.fixture(autouse=True)
def bounded_time_and_memory() -> Iterator[None]:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.process_time()
    yield
    assert time.process_time() - start_s < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MAX_EXTRA_KIB


@pytest.mark.parametrize(("source", "message"), BOMBS)
def test_bomb_is_a_request_error(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(source)


@pytest.mark.parametrize("source", LARGE_BOMBS)
def test_large_bomb_is_a_request_error_under_the_usual_limits(source: str) -> None:
    with pytest.raises(RequestError, match=r"the template (made|asks|takes)"):
        render(source, Limits())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '%5d|%-4s|%05.1f' % (42, 'ab', 2.5) }}", "   42|ab  |002.5"),
        ("{{ '{:>5}|{:{}}'.format(42, 'ab', 4) }}", "   42|ab  "),
        ("{{ {'b': [1, 'é'], 'a': {}} | tojson(indent=2, sort_keys=true) }}", None),
        (
            "{{ ['é😀', 1.5, none] | tojson(ensure_ascii=true) }}",
            r'["\u00e9\ud83d\ude00", 1.5, null]',
        ),
    ],
)
def test_formats_within_the_limits_are_python_s(source: str, expected: str | None) -> None:
    expected = expected or json.dumps(
        {"b": [1, "é"], "a": {}}, ensure_ascii=False, indent=2, sort_keys=True
    )

    assert render(source) == expected


@pytest.mark.parametrize("source", ODDITIES)
def test_odd_template_ends(source: str) -> None:
    with contextlib.suppress(RequestError):
        render(source)


def test_default_limits_end_a_loop_in_time_while_others_render() -> None:
    bomb = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    with ThreadPoolExecutor(2) as pool:
        start_s = time.monotonic()
        stuck = pool.submit(render, bomb, Limits())
        fine = [render("{{ messages[0].content }}") for _ in range(20)]
        others_s = time.monotonic() - start_s

        with pytest.raises(RequestError, match="ran for more than 3 s"):
            stuck.result()

    assert fine == ["<x>" * 10] * 20
    assert others_s < 3


def test_input_over_the_limits_of_a_value_is_rendered() -> None:
    messages = [{"role": "user", "content": "word" * 300_000}] * 5
    source = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
    chats = ChatTemplate({"default": source}, {}, control_texts=("<|x|>",))

    assert len(chats.render(messages).text) > Limits().max_value


def test_long_chats_are_within_the_limits() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    source = "{% for m in messages %}{{ '<|x|>' + m.role + m.content | trim }}\n{% endfor %}"
    chats = ChatTemplate({"default": source}, {}, control_texts=("<|x|>",))

    assert len(chats.render(messages).text) > 2_000_000
