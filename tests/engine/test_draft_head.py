"""Drafts of a model's own head through the engine: the tokens are those without them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.errors import ConfigError
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams
from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import ModelCase
from tests.engine.engine_backend import EXACT
from tests.engine.tiny_model import CONFIG, HYBRID_CONFIG, write_tiny_model

PROMPTS = ["abcabcabcabc", "hello hello hello", "x", "one two three four five"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "m", config=HYBRID_CONFIG)


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers add nothing and whose head reads the token behind: it is always right.

    A norm of a norm is that norm, so the head gives what the decoder will give one token later.
    """
    folder = write_tiny_model(tmp_path_factory.mktemp("sure") / "m", config=HYBRID_CONFIG)
    weights = ModelCase("sure", HYBRID_CONFIG).weights()
    for name in weights:
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(weights[name])
        if name.endswith("norm.weight") or ".pre_fc_norm" in name:
            weights[name] = np.zeros_like(weights[name])
    size = HYBRID_CONFIG["hidden_size"]
    weights["mtp.fc.weight"] = np.eye(size, 2 * size, dtype=np.float32)
    files = {path.name: path.read_text() for path in folder.glob("*.json")}
    del files["config.json"]
    return write_safetensors(folder, weights, HYBRID_CONFIG, files=files)


def llm_of(folder: Path, num_drafts: int = 0, **settings: Any) -> LLM:
    chosen = EXACT | settings
    if num_drafts:
        chosen |= {"speculation": "mtp", "num_speculative_tokens": num_drafts}
    return LLM(str(folder), **chosen)


def facts(llm: LLM, params: Any) -> list[Any]:
    outputs = llm.generate(PROMPTS, params)
    llm.engine.core.scheduler.check_integrity()
    return [(o.outputs[0].token_ids, o.outputs[0].finish_reason) for o in outputs]


def greedy(**settings: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "temperature": 0.0} | settings)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"temperature": 0.8, "seed": 3}, id="sampled"),
        pytest.param({"repetition_penalty": 1.3, "bad_words": ["bc"]}, id="penalties"),
        pytest.param(
            {
                "structured_outputs": StructuredOutputsParams(regex="(abc ){3,}"),
                "ignore_eos": False,
            },
            id="regex",
        ),
    ],
)
def test_answers_are_those_without_drafts(folder: Path, settings: dict[str, Any]) -> None:
    params = greedy(**settings)

    assert facts(llm_of(folder, 3), params) == facts(llm_of(folder), params)


@pytest.mark.parametrize(("num_drafts", "block_size"), [(1, 256), (2, 4), (5, 4), (5, 256)])
def test_a_head_that_is_right_saves_a_step_a_draft(
    sure: Path, num_drafts: int, block_size: int
) -> None:
    """Also where drafts cross the end of a block."""
    plain, drafting = llm_of(sure), llm_of(sure, num_drafts, block_size=block_size)

    assert facts(drafting, greedy()) == facts(plain, greedy())
    stats = drafting.engine.core.stats
    assert stats.spec_decode_acceptance_rate == 1.0
    assert stats.num_steps == 1 + -(-23 // (1 + num_drafts))


def test_places_of_drafts_take_no_block_that_a_request_does_not_need(sure: Path) -> None:
    """Two requests of 9 and 10 blocks in a pool of 19."""
    drafting = llm_of(sure, 5, block_size=4, num_blocks=19, max_model_len=64)

    found = drafting.generate(PROMPTS[:2], greedy())

    assert [o.outputs[0].token_ids for o in found] == [
        t for t, _ in facts(llm_of(sure), greedy())[:2]
    ]
    assert drafting.engine.core.scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize("num_blocks", [18, 99])
def test_preemption_chunks_and_the_prefix_cache_do_not_matter(
    folder: Path, num_blocks: int
) -> None:
    tight = {"num_blocks": num_blocks, "block_size": 4, "max_model_len": 64}
    llm = llm_of(folder, 2, max_prefill_chunk=3, max_num_batched_tokens=16, max_num_seqs=4, **tight)
    want = facts(llm_of(folder), greedy())

    assert [facts(llm, greedy()) for _ in range(2)] == [want, want]
    scheduler = llm.engine.core.scheduler
    stats = scheduler.stats()
    assert (stats.num_preemptions > 0) == (num_blocks == 18)
    assert (stats.prefix_hits > 0) == (num_blocks == 99)
    states = scheduler.kv_cache_manager.states
    assert states is not None
    assert states.pool.num_free_blocks == states.pool.num_blocks


@pytest.mark.native
def test_native_backend_is_lossless_to_the_bit_of_the_logprobs(folder: Path) -> None:
    params = [greedy(logprobs=5), greedy(temperature=0.7, seed=1, logprobs=5)] * 2
    settings = {"backend": "cpu", "dtype": "f32"}

    want = llm_of(folder, 0, **settings).generate(PROMPTS, params)
    got = llm_of(folder, 3, **settings).generate(PROMPTS, params)

    assert [o.outputs[0].logprobs for o in got] == [o.outputs[0].logprobs for o in want]


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m", config=CONFIG)

    with pytest.raises(ConfigError, match="draft head") as refused:
        llm_of(path, 1)

    assert refused.value.field == "speculative.speculation"
