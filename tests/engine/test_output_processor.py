"""Texts of streams and of whole answers: characters, stop strings, finish reasons, log probs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvt.engine.output_processor import StopChecker
from pyvt.sampling_params import SamplingParams
from tests.engine.engines import EOS, engine_of, forced, run, texts

EMOJI = "😀".encode()


def test_stream_of_many_scripts_never_shows_a_part_of_a_character() -> None:
    text = "😀 é 漢字 👩‍👩‍👧 d\u030c"

    outputs = run(engine_of(forced=forced(text)), "a", "x", is_stream=True)

    assert "".join(texts(outputs)) == text
    assert not any("\ufffd" in piece for piece in texts(outputs))


def test_streams_of_one_batch_keep_their_characters_apart() -> None:
    wanted = {"a": "😀 é 漢字", "b": "👩‍👩‍👧 ď!"}
    engine = engine_of(forced={name: [*text.encode(), EOS] for name, text in wanted.items()})
    for name in wanted:
        params = SamplingParams(max_tokens=60, temperature=0)
        engine.add([engine.process(name, "x", params)], is_stream=True)

    pieces: dict[str, list[str]] = {name: [] for name in wanted}
    while engine.has_unfinished_requests:
        for output in engine.step():
            pieces[output.request_id].append(output.outputs[0].text)

    assert {name: "".join(found) for name, found in pieces.items()} == wanted
    assert not any("\ufffd" in piece for found in pieces.values() for piece in found)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        pytest.param([*EMOJI[:2], *b" a"], "\ufffd a", id="broken-then-text"),
        pytest.param([*EMOJI, *b" a"], "😀 a", id="whole"),
        pytest.param([*b"a", *EMOJI[:3]], "a\ufffd", id="broken-at-the-end"),
        pytest.param([0xFF, *b"a"], "\ufffda", id="never-a-character"),
    ],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_broken_characters_give_one_replacement_each(
    ids: list[int], text: str, is_stream: bool
) -> None:
    outputs = run(engine_of(forced=forced(ids)), "a", "x", is_stream=is_stream)

    assert "".join(texts(outputs)) == text


STOP_TABLE = [
    pytest.param("abcDEFGHIJxyz", ["DEFGHIJ"], "abc", "DEFGHIJ", id="one"),
    pytest.param("abcDEFGHxyz", ["DEFGHIJ"], "abcDEFGHxyz", None, id="head-only"),
    pytest.param("abcDEFG", ["DEFGHIJ"], "abcDEFG", None, id="head-at-the-end"),
    pytest.param("hi User:\nx", ["User:\n", "Assistant:\n"], "hi ", "User:\n", id="two"),
    pytest.param("hi Assistant:\nx", ["User:\n", "ant:\n"], "hi Assist", "ant:\n", id="suffix"),
    pytest.param("xabcde", ["abcde", "bc"], "xa", "bc", id="earliest-end"),
    pytest.param("xabc", ["bc", "abc"], "x", "abc", id="same-end-longest"),
    pytest.param("xUser:\n", ["User:\n", "User:"], "x", "User:", id="one-starts-the-other"),
    pytest.param("aabaabx", ["aabx"], "aab", "aabx", id="overlap-with-itself"),
    pytest.param("漢字です", ["字で"], "漢", "字で", id="many-bytes"),
    pytest.param("stop", ["stop"], "", "stop", id="all-of-it"),
    pytest.param("a\n\nb", ["\n\n"], "a", "\n\n", id="newlines"),
    pytest.param("abab", ["abc"], "abab", None, id="head-twice"),
]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(("generated", "stop", "text", "stop_reason"), STOP_TABLE)
def test_stop_string_ends_the_text_before_it(
    generated: str, stop: list[str], text: str, stop_reason: str | None, is_stream: bool
) -> None:
    engine = engine_of(forced=forced(generated))

    outputs = run(engine, "a", "x", stop=stop, is_stream=is_stream)

    last = outputs[-1].outputs[0]
    assert "".join(texts(outputs)) == text
    assert (last.finish_reason, last.stop_reason) == ("stop", stop_reason)
    assert outputs[-1].finished
    assert [output.finished for output in outputs[:-1]] == [False] * (len(outputs) - 1)


def test_stop_string_in_a_stream_gives_out_text_as_soon_as_it_is_certain() -> None:
    outputs = run(engine_of(forced=forced("abcDEx")), "a", "x", stop=["DEF"], is_stream=True)

    assert texts(outputs) == ["a", "b", "c", "DEx", ""]
    assert [o.outputs[0].token_ids for o in outputs] == [
        *[(byte,) for byte in b"abc"],
        tuple(b"DEx"),
        (EOS,),
    ]


def test_stop_string_frees_the_request_in_the_same_step() -> None:
    engine = engine_of(forced=forced("abcdef", is_ended=False))

    outputs = run(engine, "a", "x", stop=["bc"], max_tokens=50)

    assert outputs[0].outputs[0].token_ids == tuple(b"abc")
    assert engine.core.stats.num_finished == {"stop": 1}


def test_stop_string_before_min_tokens_is_text() -> None:
    outputs = run(engine_of(forced=forced("ab.cd.e")), "a", "x", stop=["."], min_tokens=4)

    assert texts(outputs) == ["ab.cd"]


def test_stop_string_of_the_token_that_completes_min_tokens_counts() -> None:
    outputs = run(engine_of(forced=forced("ab.cd.e")), "a", "x", stop=["."], min_tokens=3)

    assert texts(outputs) == ["ab"]


def test_stop_string_completed_by_the_last_allowed_token_reads_stop() -> None:
    outputs = run(engine_of(forced=forced("abc")), "a", "x", stop=["c"], max_tokens=3)

    assert outputs[0].outputs[0].finish_reason == "stop"
    assert texts(outputs) == ["ab"]


@given(
    text=st.text("ab", max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=6),
)
def test_stop_checker_result_does_not_depend_on_the_cuts(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    """Against the definition: the match that ends first, the longest of those."""
    edges = [0, *sorted(cuts), len(text)]
    checker = StopChecker(stop)
    given_out = ""

    for start, end in pairwise(edges):
        if checker.matched is None:
            given_out += checker.push(text[start:end])
    given_out += checker.flush()

    matches = [
        (end, start)
        for end in range(1, len(text) + 1)
        for start in range(end)
        if text[start:end] in stop
    ]
    want = text[: min(matches)[1]] if matches else text
    assert given_out == want
    assert (checker.matched is None) == (not matches)


@given(text=st.text("abc", max_size=12), stop=st.lists(st.text("ab", min_size=1), min_size=1))
def test_stop_checker_never_gives_out_a_part_of_the_match(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    pieces = []

    for character in text:
        if checker.matched is None:
            pieces.append(checker.push(character))

    end = len("".join(pieces)) + len(checker.matched or "")
    assert "".join(pieces) == text[: len("".join(pieces))]
    assert checker.matched is None or text[:end].endswith(checker.matched)


@pytest.mark.parametrize(
    ("params", "ids", "text", "reason", "stop_reason"),
    [
        pytest.param({}, [*b"ab", EOS], "ab", "stop", None, id="eos"),
        pytest.param({"max_tokens": 1}, [*b"ab"], "a", "length", None, id="length"),
        pytest.param({"stop_token_ids": [98]}, [*b"abc"], "a", "stop", 98, id="stop-id"),
        pytest.param(
            {"ignore_eos": True, "max_tokens": 3}, [97, EOS, 98], "ab", "length", None, id="ignored"
        ),
        pytest.param(
            {"ignore_eos": True, "max_tokens": 3, "skip_special_tokens": False},
            [97, EOS, 98],
            "a<eos>b",
            "length",
            None,
            id="specials-shown",
        ),
        pytest.param(
            {"skip_special_tokens": False}, [97, EOS], "a", "stop", None, id="end-is-never-text"
        ),
    ],
)
def test_finish_reason_and_text(
    params: dict[str, object], ids: list[int], text: str, reason: str, stop_reason: int | None
) -> None:
    outputs = run(engine_of(forced={"a": ids}), "a", "x", **params)

    completion = outputs[0].outputs[0]
    assert completion.text == text
    assert (completion.finish_reason, completion.stop_reason) == (reason, stop_reason)
    assert completion.token_ids == tuple(ids[: len(completion.token_ids)])


def test_failed_row_reads_error_with_its_text() -> None:
    outputs = run(engine_of(failing=frozenset({"a"})), "a", "x", max_tokens=3)

    assert outputs[0].outputs[0].finish_reason == "error"
    assert outputs[0].error == "logits are not finite"


def test_tokens_of_a_stream_come_with_the_text_that_completes_them() -> None:
    outputs = run(engine_of(forced=forced("é!")), "a", "x", is_stream=True)

    first, second, last = (output.outputs[0] for output in outputs)
    assert (first.text, first.token_ids) == ("é", tuple("é".encode()))
    assert (second.text, second.token_ids) == ("!", (ord("!"),))
    assert (last.text, last.token_ids) == ("", (EOS,))


@pytest.mark.parametrize("stop", [(), ("zz",), ("b",)])
def test_tokens_and_logprobs_of_a_stream_sum_to_the_whole(stop: tuple[str, ...]) -> None:
    generated = "azé漢b😀zzz"
    params = {"stop": stop, "logprobs": 2}

    pieces = run(engine_of(forced=forced(generated)), "a", "x", is_stream=True, **params)
    whole = run(engine_of(forced=forced(generated)), "a", "x", **params)[0].outputs[0]

    completions = [piece.outputs[0] for piece in pieces]
    assert whole.logprobs is not None
    assert "".join(c.text for c in completions) == whole.text
    assert tuple(t for c in completions for t in c.token_ids) == whole.token_ids
    assert tuple(p for c in completions for p in c.logprobs or ()) == whole.logprobs
    assert [p.taken.token_id for p in whole.logprobs] == list(whole.token_ids)


def test_logprobs_give_true_bytes_and_alternatives_alone() -> None:
    engine = engine_of(forced={"a": [0xC3, 97]})

    outputs = run(engine, "a", "x", logprobs=2, max_tokens=2)

    position = (outputs[0].outputs[0].logprobs or ())[0]
    assert (position.taken.token_bytes, position.taken.text) == (b"\xc3", "\ufffd")
    assert [entry.token_bytes for entry in position.top] == [b"\xc3", b"\xc4"]


def test_logprobs_are_none_unless_asked_for() -> None:
    assert run(engine_of(), "a", "x", max_tokens=2)[0].outputs[0].logprobs is None


def test_logprobs_zero_gives_the_taken_token_only() -> None:
    outputs = run(engine_of(), "a", "x", logprobs=0, max_tokens=2)

    assert [position.top for position in outputs[0].outputs[0].logprobs or ()] == [(), ()]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("generated", "stop", "text"),
    [
        pytest.param("abcDEFxyz", ["DEF"], "abcDEF", id="one"),
        pytest.param("xabcde", ["abcde", "bc"], "xabc", id="earliest-end"),
        pytest.param("abcDE", ["DEF"], "abcDE", id="head-at-the-end"),
        pytest.param("漢字です", ["字で"], "漢字で", id="many-bytes"),
    ],
)
def test_included_stop_string_is_the_end_of_the_text(
    generated: str, stop: list[str], text: str, is_stream: bool
) -> None:
    engine = engine_of(forced=forced(generated))
    params = {"stop": stop, "include_stop_str_in_output": True}

    outputs = run(engine, "a", "x", is_stream=is_stream, **params)

    assert "".join(texts(outputs)) == text
    assert outputs[-1].outputs[0].finish_reason == "stop"


def test_included_stop_string_holds_nothing_back() -> None:
    params = {"stop": ["DEF"], "include_stop_str_in_output": True}

    outputs = run(engine_of(forced=forced("aDExDEF")), "a", "x", is_stream=True, **params)

    assert texts(outputs) == list("aDExDEF")


@pytest.mark.parametrize(
    ("params", "text"),
    [
        pytest.param({"stop_token_ids": [98]}, "ab", id="stop-id"),
        pytest.param({"skip_special_tokens": False}, "abc<eos>", id="end-shown"),
        pytest.param({}, "abc", id="end-is-special"),
    ],
)
def test_included_end_token_has_its_text(params: dict[str, object], text: str) -> None:
    engine = engine_of(forced=forced("abc"))

    outputs = run(engine, "a", "x", include_stop_str_in_output=True, **params)

    assert texts(outputs) == [text]


@given(
    text=st.text("ab", max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=6),
)
def test_included_stop_string_does_not_depend_on_the_cuts(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    checker = StopChecker(stop, is_included=True)
    given_out = ""

    for start, end in pairwise(edges):
        if checker.matched is None:
            given_out += checker.push(text[start:end])
    given_out += checker.flush()

    ends = [end for end in range(1, len(text) + 1) if text[:end].endswith(tuple(stop))]
    assert given_out == text[: min(ends, default=len(text))]
