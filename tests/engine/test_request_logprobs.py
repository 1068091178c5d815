"""Log probabilities of a request: those of the model, whatever is asked for and runs beside."""

import json
import math
from typing import Any

import pytest

from pyvt.llm import LLM
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.engine.engine_backend import ON_BACKEND
from tests.engine.tiny_model import write_tiny_model

PROMPT = list(range(40, 52))
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 2.0, "seed": 2},
    {"temperature": 2.0, "top_p": 0.1, "seed": 3},
    {"temperature": 0.9, "top_k": 1, "seed": 4},
    {"temperature": 0.0, "repetition_penalty": 1.7, "presence_penalty": 1.5},
    {"temperature": 1.0, "seed": 5, "allowed_token_ids": [5, 6, 7, 8]},
    {"temperature": 0.0, "logit_bias": {9: 50.0}, "top_p": 0.9},
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    # All rows of the logits are tokens, so that every answer can be a prompt.
    path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", vocab_size=258)
    return LLM(str(path), **ON_BACKEND)


def params_of(num_top: int, settings: dict[str, Any]) -> SamplingParams:
    shared = {"max_tokens": 6, "ignore_eos": True}
    return SamplingParams(**(shared | {"logprobs": num_top} | settings))


def scored(llm: LLM, output: RequestOutput) -> list[dict[int, float]]:
    """Return what the model itself gives to the tokens of an answer, as a prompt."""
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=20)
    (again,) = llm.generate([ids], params)
    assert again.prompt_logprobs is not None
    found = []
    for position in again.prompt_logprobs[len(output.prompt_token_ids) :]:
        assert position is not None
        entries = (position.taken, *position.top)
        found.append({entry.token_id: entry.logprob for entry in entries})
    return found


@pytest.mark.parametrize("num_top", [1, 5, 20])
def test_values_are_those_of_the_text_scored_anew(llm: LLM, num_top: int) -> None:
    """In a batch of eight, with any settings, for any number of alternatives."""
    outputs = llm.generate([PROMPT] * 8, [params_of(num_top, s) for s in SETTINGS])

    for output in outputs:
        positions = output.outputs[0].logprobs
        assert positions is not None
        for position, want in zip(positions, scored(llm, output), strict=True):
            entries = (position.taken, *position.top)
            assert len(position.top) == num_top
            assert [e.logprob for e in entries] == pytest.approx(
                [want[e.token_id] for e in entries], abs=1e-4
            )


def test_values_are_finite_numbers_of_json(llm: LLM) -> None:
    outputs = llm.generate([PROMPT] * 8, [params_of(20, s) for s in SETTINGS])

    values = [
        entry.logprob
        for output in outputs
        for position in output.outputs[0].logprobs or ()
        for entry in (position.taken, *position.top)
    ]
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert len(values) == 8 * 6 * 21
    assert all(-9999 < value <= 0 and math.isfinite(value) for value in values)


def test_one_best_token_is_the_greedy_one(llm: LLM) -> None:
    settings = [{"temperature": 0.0}, {"temperature": 1.9, "top_k": 1, "seed": 8}]

    greedy, narrow = llm.generate([PROMPT] * 2, [params_of(2, s) for s in settings])

    assert greedy.outputs[0].token_ids == narrow.outputs[0].token_ids
    assert greedy.outputs[0].logprobs == narrow.outputs[0].logprobs
