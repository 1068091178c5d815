"""Grammars made to kill or to stall: each is compiled in a process of its own and answered."""

import json
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.structured.closing import MAX_BYTES
from pyvt.structured.compile_threads import CompileThreads
from pyvt.structured.compiler import _compile
from pyvt.structured.grammar import MAX_CHOICES, MAX_SCHEMA_LEVELS, grammar_text
from pyvt.structured.vocabulary import GrammarVocabulary
from pyvt.testing.fakes import FakeTokenizer
from tests.structured.texts import accepts, compiled

SCRIPT = """
import json, resource, sys, time
from tests.structured.texts import accepts, compiled
from pyvt.errors import RequestError
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
compiled(choice=["a"])
for kind, text in json.load(sys.stdin):
    try:
        compiled(**{kind: text})
    except RequestError as error:
        assert len(str(error)) < 600, len(str(error))
        print("refused")
    else:
        print("taken")
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
assert grown < 300, f"{grown} MiB"
"""
RULES = "\n".join(f"r{i}: r{i + 1}" for i in range(5000))
GBNF_RULES = "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000))
DEFS = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(3000)}
NESTED = '{"items":' * 5000 + "{}" + "}" * 5000
CASES = {
    "nested-regex": ("regex", "(" * 60000, "refused"),
    "nested-regex-short": ("regex", "(" * 5000 + "a" + ")" * 5000, "refused"),
    "anchors": ("regex", "^+[a-z]$", "taken"),
    "repeat": ("regex", "a{1,1000000000}", "taken"),
    "repeat-twice": ("regex", "(a{1,1000}){1,1000}(b|c){5000}", "taken"),
    "stars": ("regex", "(a+)+$", "taken"),
    "options": ("regex", "a?" * 20000, "refused"),
    "left-recursion": ("grammar", 'start: start "a" | "b"', "taken"),
    "nested-lark": ("grammar", "start: " + "(" * 60000 + '"a"' + ")" * 60000, "refused"),
    "nested-gbnf": ("grammar", "root ::= " + "(" * 60000, "refused"),
    "rules": ("grammar", f'start: r0\n{RULES}\nr5000: "a"', "refused"),
    "rules-gbnf": ("grammar", f'root ::= r0\n{GBNF_RULES}\nr5000 ::= "a"', "refused"),
    "references": ("json", {"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}, "refused"),
    "references-in-lark": (
        "grammar",
        "start: %json " + json.dumps({"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}),
        "refused",
    ),
    "references-in-lark-escaped": (
        "grammar",
        "start: %json "
        + json.dumps({"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}}).replace(
            "$r", "$\\u0072"
        ),
        "refused",
    ),
    "references-in-tags": (
        "structural_tag",
        {
            "structures": [
                {
                    "begin": "<t>",
                    "schema": {"$ref": "#/$defs/r0", "$defs": DEFS | {"r3000": {}}},
                    "end": "",
                }
            ],
            "triggers": ["<t>"],
        },
        "refused",
    ),
    "pattern": ("json", {"items": {"pattern": "a?" * 20000}}, "refused"),
    "pattern-of-names": ("json", {"patternProperties": {"a?" * 20000: {}}}, "refused"),
    "regex-in-lark": ("grammar", f"start: /{'a?' * 20000}/", "refused"),
    "items": ("json", {"type": "array", "minItems": 10**6}, "taken"),
    "characters": ("json", {"type": "string", "minLength": 10**7}, "taken"),
    "repeats": ("grammar", 'start: ("a" | "b"){1000000}', "taken"),
    "nested-json": ("json", NESTED, "refused"),
    "nested-less": ("json", '{"items":' * 150 + "{}" + "}" * 150, "refused"),
    "huge-number": ("json", {"const": 10**400}, "refused"),
    "large-json": ("json", {"enum": ["x" * 1000] * 2000}, "refused"),
    "enum": ("json", {"enum": [f"value {i}" for i in range(10_000)]}, "taken"),
    "choices": ("choice", [f"value {i}" for i in range(5000)], "taken"),
    "most-choices": ("choice", [f"value {i}" for i in range(MAX_CHOICES)], "taken"),
    "properties": (
        "json",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}},
        "taken",
    ),
}


def test_hostile_grammars_are_answered_and_the_process_lives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([case[:2] for case in CASES.values()]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    answers = dict(zip(CASES, done.stdout.split(), strict=True))
    assert answers == {name: case[2] for name, case in CASES.items()}


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (
            "choice",
            ["a"] * 70_000,
            r"structured_outputs\.choice: expected at most 7900 texts, got 7",
        ),
        (
            "json",
            '{"items":' * 120 + "{}" + "}" * 120,
            "json: expected at most 120 levels, got 121",
        ),
        ("json", {"minimum": 10**400}, "json: expected levels and numbers that can be read"),
        ("json", '{"const": "\\ud800"}', "json: expected JSON of Unicode text"),
        (
            "structural_tag",
            {
                "structures": [{"begin": f"<{i}", "schema": {}, "end": ">"} for i in range(3000)],
                "triggers": ["<"],
            },
            "more rules than its compiler takes; send a smaller one",
        ),
    ],
)
def test_limits_are_told_in_words_of_a_request(kind: str, value: Any, told: str) -> None:
    with pytest.raises(RequestError, match=told) as refused:
        compiled(**{kind: value})

    assert refused.value.param == "structured_outputs"
    assert "panic" not in str(refused.value)


def test_deepest_schema_compiles() -> None:
    nested = '{"items":' * (MAX_SCHEMA_LEVELS - 1) + "{}" + "}" * (MAX_SCHEMA_LEVELS - 1)

    assert compiled(json=nested).shortest > 0


def test_grammar_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,), timeout_s=0.01)
    release = threading.Event()
    monkeypatch.setattr("pyvt.structured.compiler._compile", lambda *_: release.wait())

    with pytest.raises(RequestError, match=r"compiles in 0\.01 s") as refused:
        compiler.compile(StructuredOutputsParams(regex="a"))
    release.set()
    compiler.close()

    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize("is_busy", [False, True])
def test_only_time_of_its_own_is_counted(monkeypatch: pytest.MonkeyPatch, is_busy: bool) -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,), timeout_s=0.2)
    release = threading.Event()
    real = _compile

    def slow(params: StructuredOutputsParams, vocabulary: GrammarVocabulary) -> Any:
        while is_busy and not release.is_set():
            pass
        release.wait(0.4)
        return real(params, vocabulary)

    monkeypatch.setattr("pyvt.structured.compiler._compile", slow)
    monkeypatch.setattr("pyvt.structured.compile_threads._WALL_FACTOR", 1e6)
    if is_busy:
        with pytest.raises(RequestError, match="compiles in"):
            compiler.compile(StructuredOutputsParams(regex="a"))
    else:
        assert compiler.compile(StructuredOutputsParams(regex="a")).shortest == 1
    release.set()
    compiler.close()


def test_grammars_that_never_compile_leave_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,), timeout_s=0.05)
    release = threading.Event()
    real = _compile

    def stuck(params: StructuredOutputsParams, vocabulary: GrammarVocabulary) -> Any:
        return release.wait() if params.regex == "stuck" else real(params, vocabulary)

    monkeypatch.setattr("pyvt.structured.compiler._compile", stuck)
    for text in ("x", "y", "z"):
        with pytest.raises(RequestError, match="compiles in"):
            compiler.compile(StructuredOutputsParams(regex="stuck", begin_after=text))

    taken = GrammarCompiler.compile(compiler, StructuredOutputsParams(regex="ab"))
    release.set()
    compiler.close()

    assert taken.shortest == 2


def test_compiler_that_is_dropped_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,))
    compiler.compile(StructuredOutputsParams(regex="a"))
    threads = set(threading.enumerate()) - before
    assert threads

    del compiler
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)


def test_thread_without_work_keeps_nothing_of_its_last_job() -> None:
    threads = CompileThreads(1, "test")
    job = threads.submit(len, "ab")
    assert job.result.result(60) == 2
    seen = weakref.ref(job)

    del job
    end_s = time.monotonic() + 60
    while seen() is not None and time.monotonic() < end_s:
        time.sleep(0.001)
    is_gone = seen() is None
    threads.close()

    assert is_gone


def test_job_that_waits_when_it_is_given_up_never_begins() -> None:
    threads = CompileThreads(1, "test")
    release, begun = threading.Event(), threading.Event()
    first, second = threads.submit(release.wait), threads.submit(begun.set)

    threads.give_up(second)
    release.set()
    assert first.result.result(60) is True
    assert threads.submit(len, "ab").result.result(60) == 2
    threads.close()

    assert second.result.cancelled()
    assert not begun.is_set()


@pytest.mark.parametrize(
    ("settings", "shortest"),
    [({"regex": "(a{50}){100}"}, 5000), ({"regex": "a{1000000000}"}, MAX_BYTES)],
)
def test_text_that_is_forced_counts_in_the_shortest(
    settings: dict[str, Any], shortest: int
) -> None:
    """Where the search comes to its bound, as far as it came."""
    assert compiled(**settings).shortest == shortest


ENDLESS = {
    "lark": ({"grammar": "start: A start\nA: /a+/"}, "rule 'start'"),
    "lark-literal": ({"grammar": 'start: "a" start'}, "rule 'start'"),
    "lark-chain": ({"grammar": 'start: "x" | one\none: "y" two\ntwo: one "z"'}, "rule 'one'"),
    "lark-group": ({"grammar": 'start: ("a" | one)\none: (start? one){2,3}'}, "rule 'one'"),
    "gbnf": ({"grammar": 'root ::= "a" root | "b" root'}, "rule 'root'"),
    "schema": (
        {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
        "#, which requires itself",
    ),
    "schema-array": (
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "minItems": 1,
                  "items": {"anyOf": [{"$ref": "#/$defs/a"}, False]}}}}},
        "#/$defs/a, which requires itself",
    ),
    "schema-false": ({"json": {"$ref": "#/$defs/a", "$defs": {"a": False}}}, "or is false"),
    # Without a reference it is the library that says why.
    "schema-unsatisfiable": (
        {"json": {"type": "array", "minItems": 1, "items": False}}, "#/minItems cannot",
    ),
    "schema-in-lark": ({"grammar": 'start: %json {"$ref": "#"}'}, "#, which requires itself"),
    "tag": (
        {"structural_tag": {"structures": [{"begin": "<t>", "schema": {"allOf": [{"$ref": "#"}]},
                            "end": ""}], "triggers": ["<t>"]}},
        "#, which requires itself",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "named"), ENDLESS.values(), ids=ENDLESS.keys())
def test_grammar_without_a_finite_text_is_refused_by_name(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(**settings)

    assert named in str(refused.value)
    assert refused.value.param == "structured_outputs"


def test_optional_part_that_no_value_satisfies_is_never_begun() -> None:
    """A model that had begun it could not end."""
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/x"},
            "b": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/x"}},
        },
        "additionalProperties": False,
        "$defs": {"x": endless},
    }

    grammar = compiled(json=schema)

    assert accepts(grammar, '{"b":null,"c":[]}')
    for text in ('{"a', '{"b":{', '{"c":[{'):
        matcher = grammar.start((), max_tokens=None)
        *begun, last = text.encode()
        matcher.advance(begun)
        assert matcher.error is None
        assert not matcher.masks((), 99)[0, last], text


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'start: "a" start | "b"'},
        {"grammar": 'start: one*\none: "a" [start] "b"{1,2} // start: start'},
        {"grammar": 'start: other\nother: WORD\n  | "(" other ")"\nWORD: /[a-z]+/'},
        {"grammar": 'root ::= "[" root? "]"'},
        {"json": {"type": "object", "properties": {"next": {"$ref": "#"}}}},
        {"json": {"type": "array", "items": {"$ref": "#"}}},
        {"json": {"anyOf": [{"type": "array", "minItems": 1, "items": {"$ref": "#"}},
                            {"type": "null"}]}},
        {"json": {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}},
                  "required": ["a"]}},
    ],
)  # fmt: skip
def test_grammar_that_comes_back_to_itself_and_may_end_is_taken(settings: dict[str, Any]) -> None:
    assert compiled(**settings).shortest < 12


def test_grammar_of_many_choices_in_one_place_is_followed_or_refused() -> None:
    """It was taken, and each of its answers failed at that place."""

    def schema_of(num_properties: int) -> dict[str, Any]:
        names = [f"p{i}" for i in range(num_properties)]
        return {"type": "object", "properties": {name: {"type": "string"} for name in names}}

    assert accepts(compiled(json=schema_of(500)), '{"p7": "x", "p498": "y"}')
    with pytest.raises(
        RequestError, match=r"fewer choices in one place.*Current row has \d+ items"
    ):
        compiled(json=schema_of(2500))
    assert accepts(compiled(choice=[f"value {i}" for i in range(5000)]), "value 4321")


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'start: A "a"\nA: /a+/'},
        {"grammar": 'start: A "a"\nA: /a+/\n%llguidance {"no_forcing": false}'},
        {"grammar": 'start: "x" "y" | "z" A "a"\nA: /a+/'},
        {"regex": "za{1000000000}"},
        {"grammar": 'start: "z" ("a"){1000000}'},
    ],
)
def test_text_that_is_forced_without_an_end_keeps_no_step(settings: dict[str, Any]) -> None:
    """The library made out the whole forced text for each mask, and never came back."""
    matcher = compiled(**settings).start((), max_tokens=None)
    start = time.thread_time()
    for token_id in b"zaaaaaaaaa":
        if matcher.masks((), 100)[0, token_id]:
            matcher.advance([token_id])
    assert matcher.masks((), 100)[0, ord("a")]
    assert time.thread_time() - start < 10


@pytest.mark.parametrize(
    "grammar",
    [
        "start: " + "a[\n" * 16_000,
        "start: /" + "\\/" * 30_000,
        "\n" * 60_000 + "x",
        "root ::= " + '("a"' * 60,
        'root ::= "a"{' + "9" * 5000 + "}",
        'root ::= "abc\\',
        "root ::= #" + "#" * 60_000 + "\n?",
    ],
)
def test_grammar_is_read_once_whatever_is_in_it(grammar: str) -> None:
    """An expression that went back for each of its starts took half a minute, and the lock."""
    start = time.thread_time()
    with pytest.raises(RequestError):
        grammar_text(StructuredOutputsParams(grammar=grammar), ())
    assert time.thread_time() - start < 10


def test_grammar_that_cannot_go_on_allows_nothing() -> None:
    """A failed matcher of the library lets the end through; that was taken for a whole text."""
    matcher = compiled(regex="a{5}").start((), max_tokens=None)
    matcher.advance(b"b")

    assert matcher.error is not None
    assert not matcher.masks((), 10).any()
