"""Loads for an engine: their prompts, arrivals and loops, and the figures that come of them."""

import asyncio
from typing import Any

import numpy as np
import pytest

from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import EngineDeadError, ServerError
from pyvt.sampling_params import SamplingParams
from pyvt.testing.serving_load import (
    LoadResult,
    Seen,
    arrival_offsets,
    closed_loop,
    engine_asker,
    make_prompts,
    open_loop,
)
from tests.engine.engines import engine_of

PARAMS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=4)
PROMPTS = [[number + 1] * 5 for number in range(12)]


def test_figures_of_two_requests_by_hand() -> None:
    first = Seen(due_s=0.0, output_s=[1.0, 1.5, 3.0], num_prompt_tokens=10, num_tokens=5)
    second = Seen(due_s=2.0, output_s=[4.0], num_prompt_tokens=20, num_tokens=1)

    found = {figure.name: figure.median for figure in LoadResult((first, second)).figures()}

    assert (found["mean_ttft_ms"], found["median_ttft_ms"]) == (1500, 1500)
    assert found["mean_tpot_ms"] == 500
    assert (found["mean_itl_ms"], found["median_itl_ms"]) == (1000, 1000)
    assert found["p99_e2el_ms"] == pytest.approx(2000 + 0.99 * 1000)
    assert (found["request_throughput"], found["output_throughput"]) == (0.5, 1.5)
    assert found["total_token_throughput"] == 9


def test_figures_of_single_tokens_leave_tpot_out() -> None:
    names = {figure.name for figure in LoadResult((Seen(0.0, [1.0], 1, 1),)).figures()}

    assert "mean_ttft_ms" in names
    assert "mean_tpot_ms" not in names


def test_prompts_shared_prefix_begins_all_and_the_rest_differs() -> None:
    prompts = make_prompts("shared-prefix", 5, input_len=20, prefix_len=12, vocab_size=1000, seed=1)

    assert {tuple(prompt[:12]) for prompt in prompts} == {tuple(prompts[0][:12])}
    assert len({tuple(prompt[12:]) for prompt in prompts}) == 5
    assert {len(prompt) for prompt in prompts} == {20}


def test_prompts_random_depend_on_the_seed_alone() -> None:
    made = [
        make_prompts("random", 3, input_len=8, prefix_len=4, vocab_size=50, seed=seed)
        for seed in (1, 1, 2)
    ]

    assert made[0] == made[1] != made[2]
    assert len({tuple(prompt[:4]) for prompt in made[0]}) == 3


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    fixed = arrival_offsets("fixed", 5, 10.0, 0)
    poisson = np.diff(arrival_offsets("poisson", 20_000, 10.0, 0))

    assert fixed == [0.0, 0.1, 0.2, 0.3, 0.4]
    # A mean of n exponential gaps has a deviation of 1/√n of itself.
    assert poisson.mean() == pytest.approx(0.1, rel=5 / np.sqrt(20_000))
    assert poisson.std() == pytest.approx(0.1, rel=0.05)
    assert arrival_offsets("poisson", 3, float("inf"), 0) == [0.0, 0.0, 0.0]


def run(loop: Any, **engine: Any) -> tuple[LoadResult, int]:
    """Run a loop over a fake worker; return its result and the most requests under way at once."""
    llm = AsyncLLM.from_engine(engine_of(**engine))
    ask = engine_asker(llm, PARAMS)
    counts = [0]

    async def counted(*args: Any) -> Seen:
        counts.append(counts[-1] + 1)
        try:
            return await ask(*args)
        finally:
            counts.append(counts[-1] - 1)

    async def main() -> LoadResult:
        try:
            return await loop(counted)
        finally:
            await llm.shutdown()

    return asyncio.run(main()), max(counts)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_closed_loop_never_has_more_under_way(concurrency: int) -> None:
    counts: list[int] = []

    result, most = run(lambda ask: closed_loop(ask, PROMPTS, concurrency, counts.append))

    assert most == concurrency
    assert len(result.requests) == 12
    assert {seen.num_tokens for seen in result.requests} == {4}
    assert counts == list(range(1, 13))


def test_open_loop_sends_all_at_once_where_the_rate_is_infinite() -> None:
    result, most = run(lambda ask: open_loop(ask, PROMPTS, [0.0] * 12, lambda _: None))

    assert most == 12
    assert {seen.num_prompt_tokens for seen in result.requests} == {5}
    assert all(seen.output_s == sorted(seen.output_s) for seen in result.requests)


def test_open_loop_counts_from_the_moment_a_request_is_due() -> None:
    offsets = [0.0, 0.05, 0.1]

    result, _ = run(lambda ask: open_loop(ask, PROMPTS[:3], offsets, lambda _: None))

    due_s = sorted(seen.due_s for seen in result.requests)
    assert np.diff(due_s).tolist() == pytest.approx([0.05, 0.05])
    assert all(seen.output_s[0] > seen.due_s for seen in result.requests)


def test_figures_are_of_the_requests_that_were_answered() -> None:
    answered = Seen(due_s=1.0, output_s=[2.0, 3.0], num_prompt_tokens=10, num_tokens=2)
    result = LoadResult((Seen(0.0, error="429: full"), answered, Seen(0.5, error="gone")))

    found = {figure.name: (figure.median, figure.n) for figure in result.figures()}

    assert (found["completed"][0], found["failed"][0]) == (1, 2)
    assert found["mean_ttft_ms"] == (1000, 1)
    assert found["request_throughput"] == (1 / 3, 1)
    assert result.errors == ["429: full", "gone"]


@pytest.mark.parametrize("is_open", [True, False])
def test_load_goes_on_where_a_server_fails_a_request(is_open: bool) -> None:
    async def ask(prompt: Any, due_s: float) -> Seen:
        if prompt == PROMPTS[1]:
            raise ServerError("[server] 429: the queue is full")
        return Seen(due_s, [due_s], len(prompt), 1)

    counts: list[int] = []
    loop = (
        open_loop(ask, PROMPTS, [0.0] * 12, counts.append)
        if is_open
        else closed_loop(ask, PROMPTS, 2, counts.append)
    )
    result = asyncio.run(loop)

    assert result.errors == ["[server] 429: the queue is full"]
    assert len(result.completed) == 11
    assert counts[-1] == 12


def test_load_with_a_failing_engine_fails_with_its_error() -> None:
    with pytest.raises(EngineDeadError, match="not finite"):
        run(
            lambda ask: closed_loop(ask, PROMPTS, 2, lambda _: None),
            failing=frozenset({"async-3"}),
        )
