"""SamplingParams: every field's type and range, and what a field is turned into."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import ReasoningBudget, SamplingParams, StructuredOutputsParams

NAN, INF = float("nan"), float("inf")
BAD = {
    "max_tokens": [0, -1, 1.5, "5", True, NAN],
    "temperature": [-0.1, NAN, INF, -INF, "1", True, None, 1e-6, 10**400],
    "top_p": [0, -0.5, 1.01, NAN, "x", True, None],
    "top_k": [-2, 1.5, "x", True, None, NAN],
    "min_p": [-0.1, 1.1, NAN, True, None],
    "repetition_penalty": [0, -1, 0.001, 101, 5e-324, NAN, INF, True, None],
    "presence_penalty": [-2.1, 2.1, NAN, True, None],
    "frequency_penalty": [-2.1, 2.1, NAN, True, None],
    "logit_bias": [{"AI": 1}, {1: NAN}, {1: 101}, {-1: 1}, {True: 1}, {1: "x"}, [1], "x", 5],
    "allowed_token_ids": [[], [-1], ["x"], [1.5], [True], "12", 5],
    "banned_token_ids": [[-1], ["x"], [NAN], "12", 5],
    "forced_token_ids": [[-1], ["x"], [1.5], [True], "12", 5],
    "reasoning_budget": [1, "x", {}, {"max_tokens": 3}, True],
    "prompt_pooling": ["none", "max", "", 1, True, ["last"]],
    "min_tokens": [-1, 1.5, True, None],
    "seed": [1.5, "x", True, -(2**63) - 1, 2**64, NAN],
    "stop": [[""], "", [1], 5, ["a", None], b"x", ["a"] * 1025],
    "stop_token_ids": [[-1], ["x"], [True], 5, "5"],
    "ignore_eos": [1, None, "true"],
    "skip_special_tokens": [0, None],
    "logprobs": [-1, 21, 1.5, True],
    "prompt_logprobs": [-1, 21, 1.5, True],
    "structured_outputs": [1, "x", {"json": {}}, True],
    "bad_words": [[""], "", [1], 5, ["a", None], b"x", ["a"] * 1025],
    "include_stop_str_in_output": [1, None, "true"],
    "n": [0, 129, 10**9, -1, 1.5, True],
    "best_of": [0, 2, -1, 1.5, True],
}


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(n, v, id=f"{n}-{v!r:.20}") for n in BAD for v in BAD[n]]
)
def test_sampling_params_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"\[sampling\] {name}: expected") as refused:
        SamplingParams(**{name: value})

    assert refused.value.param == name
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 1.5},
        {"opening": 5},
        {"closing": 5},
        {"closing": ""},
        {"closing": "</think>", "closing_text": "x"},
        {"closing_text": None},
        {"closing_text": "\ud800</think>"},
        {"is_open": "x"},
    ],
    ids=str,
)
def test_reasoning_budget_bad_value_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"\[sampling\] reasoning_budget: expected") as refused:
        ReasoningBudget(**({"max_tokens": 3} | changes))

    assert refused.value.param == "reasoning_budget"


def test_sampling_params_every_field_has_bad_values_and_help() -> None:
    names = {f.name for f in fields(SamplingParams)}

    assert names == BAD.keys()
    assert all(f.metadata["help"] for f in fields(SamplingParams))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"max_tokens": None, "seed": None, "logprobs": None, "logit_bias": None},
        {"stop": None, "stop_token_ids": None, "banned_token_ids": None},
        {"temperature": 0, "top_k": -1, "top_p": 1},
        {"temperature": 1e-5, "min_p": 1, "presence_penalty": -2, "frequency_penalty": 2},
        {"seed": -(2**63), "logprobs": 20},
        {"seed": 2**64 - 1, "logprobs": 0},
        {"max_tokens": 3, "min_tokens": 3},
    ],
)
def test_sampling_params_edges_are_accepted(params: dict[str, Any]) -> None:
    SamplingParams(**params)


def test_sampling_params_min_tokens_over_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens: expected an integer, 0 to 3, got 4"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_sampling_params_best_of_is_refused_unless_it_equals_n() -> None:
    with pytest.raises(RequestError, match=r"best_of: expected n=2, got 3; .* not supported yet"):
        SamplingParams(n=2, best_of=3)

    assert SamplingParams(n=2, best_of=2).n == 2


def test_sampling_params_take_the_numbers_of_arrays_as_pythons() -> None:
    given = SamplingParams(
        temperature=np.float64(0.5),
        top_p=np.float32(0.25),
        max_tokens=np.int64(4),
        seed=np.uint64(2**63),
        ignore_eos=np.bool_(True),
        stop=np.array(["a"]),
        stop_token_ids=np.array([1, 2]),
        banned_token_ids=[np.int32(3)],
        logit_bias={np.int64(5): np.float32(1.5)},
    )
    assert given == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        max_tokens=4,
        seed=2**63,
        ignore_eos=True,
        stop=["a"],
        stop_token_ids=[1, 2],
        banned_token_ids=[3],
        logit_bias={5: 1.5},
    )
    assert {type(value) for value in (given.temperature, given.max_tokens)} == {float, int}
    assert set(map(type, given.stop_token_ids + given.banned_token_ids)) == {int}
    for value in (np.array([0.5, 1.0]), np.float32("nan")):
        with pytest.raises(RequestError, match="temperature"):
            SamplingParams(temperature=value)


def test_sampling_params_sequences_become_tuples() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[1], allowed_token_ids={2}, logit_bias={3: 1})

    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("x",), (1,), (2,))
    assert params.logit_bias == {3: 1}


def test_sampling_params_do_not_change_with_the_callers_lists() -> None:
    stop, bias = ["x"], {1: 1.0}

    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("y")
    bias[2] = 1.0

    assert (params.stop, params.logit_bias) == (("x",), {1: 1.0})


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (0.0, True), (0.5, False)])
def test_sampling_params_zero_temperature_is_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


@pytest.mark.parametrize(
    "settings", [{"regex": "\ud800"}, {"choice": ["a", "\udfff"]}, {"grammar": 'start: "\ud800"'}]
)
def test_structured_outputs_with_half_a_character_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="expected Unicode text") as refused:
        StructuredOutputsParams(**settings)

    assert refused.value.param == "structured_outputs"
