"""States of hybrids under random traffic, in any dtype, and the tables of a packed hybrid."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.convert import quantize_model
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.models.registry import model_config
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.dtype import F32
from pyvt.testing.model_runs import all_logits, load_case
from pyvt.weights.resolve import open_model
from tests.convert.tiny_source import bpe_json, write_source
from tests.engine.engine_backend import EXACT, IS_REFERENCE, ON_BACKEND
from tests.engine.tiny_model import HYBRID_CONFIG, write_tiny_model

# Room for the longest request alone, and hardly more.
TIGHT: dict[str, Any] = {
    "block_size": 4,
    "num_blocks": 20,
    "num_state_slots": 8,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "max_prefill_chunk": 9,
}
# The emulator takes a thousand times as long.
TRAFFIC = [60, pytest.param(600, marks=pytest.mark.slow)] if IS_REFERENCE else [30]
DRAFTS: dict[str, Any] = {"speculation": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("hybrid") / "m", config=HYBRID_CONFIG)


def engine_of(folder: Path, **settings: Any) -> LLMEngine:
    return build_engine(engine_config(str(folder), **(EXACT | settings)))


def params_of(rng: np.random.Generator) -> SamplingParams:
    wanted = {"max_tokens": int(rng.integers(1, 28)), "ignore_eos": True, "temperature": 0.0}
    if rng.random() < 0.4:
        wanted |= {"temperature": 0.9, "seed": int(rng.integers(100))}
    return SamplingParams(**wanted)


def prompts_of(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Return prompts that often begin alike, end inside of blocks, and repeat themselves."""
    stems = [rng.integers(5, 250, 20).tolist() for _ in range(3)]
    found = []
    for _ in range(count):
        stem = stems[rng.integers(3)][: rng.integers(1, 21)]
        found.append([*stem, *(rng.integers(5, 9, rng.integers(1, 12)).tolist())])
    return found


def alone(engine: LLMEngine, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    engine.add_request("alone", prompt, params)
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    return tuple(outputs[-1].outputs[0].token_ids)


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("num_requests", TRAFFIC)
def test_random_traffic_in_a_tiny_pool_frees_everything_and_answers_alike(
    folder: Path, num_drafts: int, num_requests: int
) -> None:
    drafts = DRAFTS | {"num_speculative_tokens": num_drafts} if num_drafts else {}
    engine = engine_of(folder, **TIGHT, **drafts)
    rng = np.random.default_rng(num_drafts)
    prompts, params = prompts_of(rng, num_requests), [params_of(rng) for _ in range(num_requests)]
    waiting, running = list(range(num_requests)), set[str]()
    done: dict[str, tuple[int, ...]] = {}
    while waiting or engine.has_unfinished_requests:
        while waiting and rng.random() < 0.6:
            i = waiting.pop()
            engine.add_request(str(i), prompts[i], params[i])
            running.add(str(i))
        if running and rng.random() < 0.05:
            lost = sorted(running)[0]
            engine.abort([lost])
            running.remove(lost)
        for output in engine.step():
            if output.finished and output.request_id in running:
                running.remove(output.request_id)
                done[output.request_id] = tuple(output.outputs[0].token_ids)
        engine.core.scheduler.check_integrity()

    stats = engine.core.scheduler.stats()
    assert (stats.num_states, stats.kv_cache_usage) == (0, 0.0)
    assert stats.num_preemptions > 0
    assert stats.prefix_hits > 0
    assert len(done) > num_requests / 2
    solo = engine_of(folder, enable_prefix_caching=False, max_model_len=64)
    for name in list(done)[:40]:
        want = alone(solo, prompts[int(name)], params[int(name)])
        assert done[name] == want, name


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_states_are_f32_whatever_activations_and_cache_are(folder: Path, dtype: str) -> None:
    settings = {"dtype": dtype, "kv_cache_dtype": "bf16", "num_blocks": 8, "max_model_len": 32}
    engine = build_engine(engine_config(str(folder), **(ON_BACKEND | settings)))
    cache = engine.core.runner.kv_cache  # type: ignore[attr-defined]
    linear = model_config(open_model(folder)).linear_layers

    assert linear
    for layer in linear:
        _, state = cache.layers[layer]
        assert state.dtype == np.float32


def test_a_step_decodes_every_request(folder: Path) -> None:
    """A step of eight requests gives eight tokens."""
    engine = engine_of(folder, max_num_seqs=8)
    for i in range(8):
        params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
        engine.add_request(str(i), [5 + i, 6, 7], params)

    num_steps = 0
    while engine.has_unfinished_requests:
        engine.step()
        num_steps += 1

    assert engine.core.stats.num_generation_tokens == 72
    assert num_steps == 9


@pytest.mark.parametrize("file_type", ["q8_0", "q4_0"])
def test_logits_follow_the_token_with_every_table_packed(tmp_path: Path, file_type: str) -> None:
    source = write_source(tmp_path / "m", "qwen3_5", bpe_json("qwen35"), tie_word_embeddings=True)
    quantize_model(source, tmp_path / "out.gguf", file_type)
    files = open_model(tmp_path / "out.gguf")
    assert files.source.info("model.embed_tokens.weight").dtype is not F32

    model = load_case(tmp_path / "out.gguf", expand="never").model
    prompts = [(np.array([token]), np.array([0])) for token in (1, 7, 200)]
    rows = [logits[0] for logits in all_logits(model, prompts)]

    assert all(row.std() > 0.1 for row in rows)
    assert all(np.abs(a - b).max() > 0.5 for a, b in pairwise(rows))
