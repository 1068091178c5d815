"""Memory of a device: what an engine plans to take, and what happens when there is no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.dispatch import use_backend
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import ConfigError, OutOfMemoryError
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.backends.cuda.device_engine import engine_on
from tests.backends.cuda.under_test import IS_THERE, NAME, native
from tests.engine.tiny_model import HYBRID_CONFIG, write_tiny_model

# The emulator alone can be told how much memory it has.
pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(NAME != "cuda-emu", reason="needs a device whose memory can be bounded"),
]

MIB = 1 << 20
LIMIT = 4096 * MIB
LONG, SHORT = list(range(5, 55)), [5, 6, 7]


@pytest.fixture(autouse=True)
def limits_again() -> Iterator[None]:
    """All memory, and the reference, again after the test."""
    yield
    if IS_THERE:
        native().set_memory_limit(LIMIT)
    use_backend("numpy")


def leave(num_bytes: int) -> None:
    """Let the device have no more than what is taken and ``num_bytes``."""
    module = native()
    module.trim()
    free, total = module.memory()
    module.set_memory_limit(total - free + num_bytes)


def answer(engine: LLMEngine, prompt: list[int], **settings: Any) -> RequestOutput:
    params = SamplingParams(
        **({"max_tokens": 6, "temperature": 0.0, "ignore_eos": True} | settings)
    )
    engine.add_request("a", prompt, params)
    last: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        last = engine.step() or last
        engine.core.scheduler.check_integrity()
    return last[-1]


@pytest.mark.parametrize("config", [None, HYBRID_CONFIG], ids=["plain", "hybrid"])
def test_step_without_memory_ends_its_requests_and_nothing_else(
    config: dict[str, Any] | None, tmp_path: Path
) -> None:
    given = {} if config is None else {"config": config}
    engine = engine_on(str(write_tiny_model(tmp_path / "m", **given)), NAME)
    before = answer(engine, SHORT).outputs[0].token_ids
    leave(24 << 10)

    failed = answer(engine, LONG)

    assert failed.outputs[0].finish_reason == "error"
    assert failed.error is not None
    assert "step of 50 tokens: [cuda] memory: expected" in failed.error
    assert "MiB free of" in failed.error
    assert answer(engine, SHORT).outputs[0].token_ids == before
    native().set_memory_limit(LIMIT)
    assert answer(engine, LONG).outputs[0].finish_reason == "length"
    pool = engine.core.scheduler.kv_cache_manager.pool
    assert pool.num_free_blocks == pool.num_blocks


def test_step_that_cannot_be_captured_leaves_the_graphs_of_other_buckets_working(
    tmp_path: Path,
) -> None:
    engine = engine_on(str(write_tiny_model(tmp_path / "m")), NAME)
    graphs: Any = engine.core.runner.graphs  # type: ignore[attr-defined]
    before = answer(engine, SHORT).outputs[0].token_ids
    compute, num_calls = graphs.model.compute_logits, 0

    def fail_once(hidden: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:  # the first is that of the prompts
            raise OutOfMemoryError("[cuda] memory: expected more")
        return compute(hidden)

    graphs.model.compute_logits = fail_once
    for i in range(3):
        engine.add_request(str(i), SHORT, SamplingParams(max_tokens=6, temperature=0.0))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        outputs += engine.step()

    assert {output.outputs[0].token_ids for output in outputs if output.finished} == {before}
    # The graph of a bucket of one was given up for that of four.
    assert list(graphs._captured) == [(4, 4)]
    assert answer(engine, SHORT).outputs[0].token_ids == before


def test_request_for_too_much_is_typed_and_names_its_size() -> None:
    leave(MIB)

    with pytest.raises(OutOfMemoryError, match=r"expected 32\.0 MiB on emulator, got .* free"):
        native().empty((32, MIB), np.uint8)

    assert native().upload(np.arange(4)).tolist() == [0, 1, 2, 3]


def planned(tmp_path: Path, **settings: Any) -> LLMEngine:
    """An engine with KV for all memory that it may have: its context is far too long for it."""
    path = write_tiny_model(tmp_path / "m", max_position_embeddings=1 << 17)
    chosen = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "backend": NAME}
    return build_engine(engine_config(str(path), **(chosen | settings)))


def test_kv_gets_what_the_largest_steps_leave_of_the_engines_share(tmp_path: Path) -> None:
    free, total = native().memory()
    share = 136 * MIB / total

    engine = planned(tmp_path, gpu_memory_utilization=share)

    plan, cache = engine.plan, engine.core.runner.kv_cache  # type: ignore[attr-defined]
    assert plan is not None
    assert 0 < plan.weight_bytes < 6 * MIB
    # 32 MiB of it are the workspace of products.
    assert 52 * MIB < plan.activation_bytes < 60 * MIB
    assert plan.kv_bytes == cache.nbytes > 70 * MIB
    assert 0 <= plan.left_bytes < MIB
    assert plan.free_bytes <= 136 * MIB
    prompts = [list(range(5, 45)), *([i, i + 1, i + 2] for i in range(5, 8))]
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=4, ignore_eos=True, top_k=5))
    while engine.has_unfinished_requests:
        engine.step()
    assert free - native().memory()[0] <= 136 * MIB


def test_share_that_is_too_small_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"raise gpu_memory_utilization or free memory"):
        planned(tmp_path, gpu_memory_utilization=0.001)


@pytest.mark.parametrize("value", [0, -0.1, 1.5, "all"])
def test_share_of_a_device_is_a_number(value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        engine_config("m", gpu_memory_utilization=value)

    assert refused.value.field == "cache.gpu_memory_utilization"
