"""LLMEngine: requests with several answers, in streams and whole."""

from collections.abc import Sequence
from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.engine.engines import engine_of, is_idle, run


def answers(outputs: Sequence[RequestOutput]) -> dict[int, tuple[int, ...]]:
    """Return the tokens of each answer by index, of a stream's outputs or of one whole output."""
    found: dict[int, tuple[int, ...]] = {}
    for output in outputs:
        for answer in output.outputs:
            found[answer.index] = found.get(answer.index, ()) + answer.token_ids
    return found


def solo(seed: int, **params: Any) -> tuple[int, ...]:
    outputs = run(engine_of(), "s", "abc", seed=seed, max_tokens=6, ignore_eos=True, **params)
    return outputs[0].outputs[0].token_ids


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_answers_equal_solo_runs_with_the_next_seeds(n: int, is_stream: bool) -> None:
    """More answers than rows too: they wait their turn."""
    engine = engine_of(max_num_seqs=2)

    outputs = run(
        engine, "a", "abc", n=n, seed=7, max_tokens=6, ignore_eos=True, is_stream=is_stream
    )

    assert answers(outputs) == {index: solo(7 + index) for index in range(n)}
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.request_id for output in outputs} == {"a"}


def test_whole_output_has_the_answers_by_index_though_they_end_in_another_order() -> None:
    forced = {"a#0": list(b"long answer"), "a#1": list(b"b."), "a#2": list(b"three.")}

    outputs = run(engine_of(forced=forced), "a", "x", n=3, stop=["."], max_tokens=11)

    assert [answer.index for answer in outputs[0].outputs] == [0, 1, 2]
    assert [answer.text for answer in outputs[0].outputs] == ["long answer", "b", "three"]
    assert [answer.finish_reason for answer in outputs[0].outputs] == ["length", "stop", "stop"]
    assert outputs[0].metrics.num_generated_tokens == 11 + 2 + 6


def test_failed_answer_leaves_the_others_whole() -> None:
    outputs = run(
        engine_of(failing=frozenset({"a#1"})), "a", "abc", n=3, seed=7, max_tokens=6,
        ignore_eos=True,
    )  # fmt: skip

    assert [answer.finish_reason for answer in outputs[0].outputs] == ["length", "error", "length"]
    assert outputs[0].error == "logits are not finite"
    assert answers(outputs)[2] == solo(9)


@pytest.mark.parametrize("is_stream", [False, True])
def test_abort_ends_all_answers_in_one_last_output(is_stream: bool) -> None:
    forced = {"a#1": list(b"b.")}
    engine = engine_of(forced=forced)
    params = engine.process("a", "abc", _params(n=3, stop=["."], max_tokens=50))
    engine.add([params], is_stream=is_stream)
    outputs = [output for _ in range(4) for output in engine.step()]

    last = engine.abort(["a", "unknown"])

    assert len(last) == 1
    assert last[0].finished
    reasons = {a.index: a.finish_reason for o in (*outputs, *last) for a in o.outputs}
    assert reasons == {0: "abort", 1: "stop", 2: "abort"}
    assert is_idle(engine)
    assert engine.abort(["a"]) == []


def test_id_is_in_use_until_the_last_answer_has_ended() -> None:
    engine = engine_of()
    engine.add_request("a", "abc", _params(n=2))

    with pytest.raises(RequestError, match="'a' is in use"):
        engine.add_request("a", "abc", _params())

    while engine.has_unfinished_requests:
        engine.step()
    engine.add_request("a", "abc", _params())
    assert engine.unfinished_request_ids == ("a",)


def test_seeds_wrap_around() -> None:
    outputs = run(
        engine_of(), "a", "abc", n=2, seed=2**64 - 1, max_tokens=6, ignore_eos=True
    )  # fmt: skip

    assert answers(outputs)[1] == solo(0)


def test_batch_with_one_prompt_too_long_leaves_nothing_queued() -> None:
    """The books are clean and the next batch has its answers in order, prompt by prompt."""
    engine = engine_of(num_blocks=8)
    batch = [engine.process(name, "abc", _params(n=2)) for name in "ab"]
    too_long = engine.process("c", "x" * 60, _params(n=2))

    with pytest.raises(RequestError, match="KV blocks"):
        engine.add([*batch, too_long])
    assert is_idle(engine)
    assert engine.unfinished_request_ids == ()

    engine.add(batch)
    found: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        found.extend(engine.step())
    assert sorted(output.request_id for output in found) == ["a", "b"]
    assert [answer.index for output in found for answer in output.outputs] == [0, 1, 0, 1]


def _params(**params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 5, "ignore_eos": True, "seed": 1} | params)
