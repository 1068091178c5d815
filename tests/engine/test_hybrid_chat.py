"""Hybrids over many turns: nothing is computed twice, and every answer is that of a cold run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import CacheGroup, engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.kv_tier import MemoryConnector
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from tests.engine.engine_backend import NAMES, ON_BACKEND, needs
from tests.engine.tiny_model import HYBRID_CONFIG, write_tiny_model

BLOCK_SIZE = 16
CONTEXT = 480


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = HYBRID_CONFIG | {"max_position_embeddings": 512}
    return write_tiny_model(tmp_path_factory.mktemp("hybrid") / "m", config=config)


def engine_of(
    folder: Path, make_connector: Callable[..., MemoryConnector] | None = None, **settings: Any
) -> LLMEngine:
    chosen = ON_BACKEND | {"max_model_len": CONTEXT, "num_blocks": 200, "max_num_seqs": 4}
    config = engine_config(str(folder), **(chosen | settings))
    return build_engine(config, make_connector=make_connector)


def run(engine: LLMEngine, prompts: list[list[int]]) -> list[RequestOutput]:
    """Return the answers to prompts that run together."""
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests:
        done |= {output.request_id: output for output in engine.step()}
        engine.core.scheduler.check_integrity()
    return [done[str(i)] for i in range(len(prompts))]


def turn_of(rng: np.random.Generator) -> list[int]:
    return rng.integers(5, 250, 20).tolist()


def answer(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("settings", [{}, {"max_prefill_chunk": 7, "num_state_slots": 6}], ids=str)
def test_each_of_twelve_turns_finds_the_prompt_before_it_but_for_a_block(
    folder: Path, settings: dict[str, Any]
) -> None:
    cold = engine_of(folder, enable_prefix_caching=False)
    warm = engine_of(folder, **settings)
    rng = np.random.default_rng(0)
    prompt: list[int] = []
    before = 0
    for _ in range(12):
        prompt = [*prompt, *turn_of(rng)]

        (output,) = run(warm, [prompt])

        assert output.metrics.num_cached_tokens >= before - BLOCK_SIZE
        assert answer(output) == answer(run(cold, [prompt])[0])
        before = len(prompt)
        prompt = [*prompt, *answer(output)]
    stats = warm.core.scheduler.stats()
    assert stats.num_snapshots >= 12
    assert stats.num_states == 0
    assert stats.num_kept_states <= int(warm.config.cache.num_state_slots)


def test_answers_that_are_repeated_word_for_word_are_found_too(folder: Path) -> None:
    """The state behind the last whole block of what was generated is kept."""
    engine = engine_of(folder, block_size=4)
    prompt = list(range(10, 30))
    (first,) = run(engine, [prompt])

    (second,) = run(engine, [[*prompt, *answer(first), 7]])

    assert second.metrics.num_cached_tokens == 24  # 20 of the prompt, 5 of 6 with KV


def test_an_edited_turn_and_branches_give_the_answers_of_cold_runs(folder: Path) -> None:
    cold, warm = engine_of(folder, enable_prefix_caching=False), engine_of(folder)
    rng = np.random.default_rng(1)
    shared = [*turn_of(rng), *turn_of(rng)]
    prompts = [[*shared, *turn_of(rng)] for _ in range(3)]

    cached = [run(warm, [prompt])[0].metrics.num_cached_tokens for prompt in prompts]
    both = run(warm, [*prompts, shared])

    assert cached == [0, 0, 32]  # the second leaves a snapshot where it leaves the first
    assert [answer(o) for o in both] == [answer(run(cold, [p])[0]) for p in (*prompts, shared)]
    assert [o.metrics.num_cached_tokens for o in both] == [48, 48, 48, 32]


def test_an_abort_frees_the_state(folder: Path) -> None:
    engine = engine_of(folder)
    engine.add_request("a", list(range(5, 60)), SamplingParams(max_tokens=50, ignore_eos=True))
    engine.step()

    engine.abort(["a"])

    assert engine.core.scheduler.stats().num_states == 0
    engine.core.scheduler.check_integrity()


def test_more_requests_than_states_wait_for_one(folder: Path) -> None:
    cold = engine_of(folder, enable_prefix_caching=False)
    engine = engine_of(folder, num_state_slots=2)
    rng = np.random.default_rng(2)
    prompts = [turn_of(rng) for _ in range(5)]

    outputs = run(engine, prompts)

    assert [answer(o) for o in outputs] == [answer(run(cold, [p])[0]) for p in prompts]


def test_several_answers_from_one_prompt_start_from_its_state(folder: Path) -> None:
    cold = engine_of(folder, enable_prefix_caching=False)
    engine = engine_of(folder)
    prompt = list(range(20, 58))
    params = SamplingParams(max_tokens=6, temperature=0.9, seed=5, n=3, ignore_eos=True)
    found = []
    for each in (engine, cold):
        each.add_request("a", prompt, params)
        while each.has_unfinished_requests:
            last = each.step()
        found.append([completion.token_ids for completion in last[-1].outputs])

    assert found[0] == found[1]
    assert len(set(found[0])) == 3


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("is_async", [False, True], ids=["in-the-step", "meanwhile"])
def test_states_travel_with_kv_to_another_engine(
    folder: Path, backend: str, is_async: bool
) -> None:
    """Turn by turn in engines of their own: each finds all that the one before it kept."""
    needs(backend)
    store: dict[Any, bytes] = {}
    made: list[MemoryConnector] = []

    def make(block_size: int, groups: tuple[CacheGroup, ...]) -> MemoryConnector:
        made.append(MemoryConnector(block_size, groups=groups, store=store, is_async=is_async))
        return made[-1]

    cold = engine_of(folder, enable_prefix_caching=False, backend=backend)
    rng = np.random.default_rng(3)
    prompt: list[int] = []
    num_cached = []
    for _ in range(4):
        prompt = prompt + turn_of(rng)
        (output,) = run(engine_of(folder, make, backend=backend), [prompt])
        assert answer(output) == answer(run(cold, [prompt])[0])
        num_cached.append(output.metrics.num_cached_tokens)

    assert num_cached == [0, 16, 32, 48]
    assert [connector.num_loaded for connector in made] == [0, 2, 3, 4]  # one of them a state


def test_state_that_cannot_be_loaded_is_computed_again(folder: Path) -> None:
    store: dict[Any, bytes] = {}
    prompt = list(range(30, 80))
    (first,) = run(
        engine_of(folder, lambda size, groups: MemoryConnector(size, groups=groups, store=store)),
        [prompt],
    )
    made: list[MemoryConnector] = []

    def make(block_size: int, groups: tuple[CacheGroup, ...]) -> MemoryConnector:
        made.append(MemoryConnector(block_size, groups=groups, store=store))
        made[-1].failing.update(name for name, group in store if groups[group].kind == "state")
        return made[-1]

    second, third = run(engine_of(folder, make), [prompt, prompt])

    assert answer(second) == answer(third) == answer(first)
    assert made[0].num_failed == 2
    assert second.metrics.num_cached_tokens == 0
