"""Vectors of prompts: the model's own hidden states, whole however the prompt was computed."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt import LLM, SamplingParams
from pyvt.errors import RequestError
from pyvt.worker.model_runner import ModelRunner
from tests.engine.tiny_model import write_tiny_model

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    found = _llm(tmp_path_factory.mktemp("models") / "tiny")
    yield found
    found.shutdown()


def _llm(path: Path, **settings: int) -> LLM:
    return LLM(write_tiny_model(path), backend="numpy", **settings)


def test_last_is_the_state_that_logits_are_made_of(llm: LLM) -> None:
    (vector,) = llm.embed(PROMPT, is_unit=False)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    (output,) = llm.generate([PROMPT], params)
    runner = llm.engine.core.runner
    assert isinstance(runner, ModelRunner)
    logits = runner.model.compute_logits(np.array([vector], np.float32))[0].astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

    assert output.outputs[0].logprobs is not None
    for entry in output.outputs[0].logprobs[0].top:
        assert entry.logprob == pytest.approx(expected[entry.token_id], abs=1e-4)


def test_mean_is_that_of_the_last_of_every_start(llm: LLM) -> None:
    starts = [PROMPT[: n + 1] for n in range(len(PROMPT))]
    lasts = llm.embed(starts, is_unit=False)
    (mean,) = llm.embed(PROMPT, pooling="mean", is_unit=False)

    assert mean == pytest.approx(np.mean(lasts, axis=0).tolist(), abs=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vector_has_length_one_and_is_the_same_again(llm: LLM, pooling: str) -> None:
    (raw,) = llm.embed(PROMPT, pooling=pooling, is_unit=False)
    llm.generate([PROMPT], SamplingParams(max_tokens=2))  # its KV is now cached
    first, second = llm.embed([PROMPT, PROMPT], pooling=pooling)

    assert math.hypot(*first) == pytest.approx(1.0)
    assert first == pytest.approx([x / math.hypot(*raw) for x in raw], abs=1e-5)
    assert first == second


def test_prompt_in_chunks_has_the_same_vector(llm: LLM, tmp_path: Path) -> None:
    chunked = _llm(tmp_path / "chunked", max_num_batched_tokens=5, max_num_seqs=2)
    for pooling in ("last", "mean"):
        expected = llm.embed("a long text in many chunks", pooling=pooling)
        assert chunked.embed("a long text in many chunks", pooling=pooling) == [
            pytest.approx(expected[0], abs=1e-5)
        ]
    chunked.shutdown()


@pytest.mark.parametrize("pooling", ["max", None])
def test_unknown_pooling_is_refused_by_its_name(llm: LLM, pooling: Any) -> None:
    with pytest.raises(RequestError, match=r"\[embed\] pooling: expected last or mean") as refused:
        llm.embed(PROMPT, pooling=pooling)

    assert refused.value.param == "pooling"
