"""Load for an engine, and what its clients saw: the figures of ``pyvt bench latency|throughput``.

Figures, with vLLM's names, on the clock of the client:

1. TTFT: from the moment at which a request is due to its first output.
2. TPOT: from the first output to the last, by the tokens after the first.
3. ITL: between two outputs of one request.
4. E2EL: from the moment at which it is due to its last output.
5. Throughput: requests, generated tokens and all tokens by the time from the first request to the
   last output.

A closed loop keeps a number of requests under way. An open loop sends them at their times whatever
comes back, so a request that waits for a slow engine counts its waiting. A request that a server
refuses or breaks off is counted as failed and has no other part in the figures.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import EngineDeadError, ServerError
from pyvt.sampling_params import SamplingParams
from pyvt.testing.record import Figure

METRICS = ("ttft", "tpot", "itl", "e2el")
DATASETS = ("random", "shared-prefix")
ARRIVALS = ("poisson", "fixed")

Prompt = str | list[int]
Prompts = list[list[int]]


@dataclass(slots=True)
class Seen:
    """What a client saw of one request, in seconds of its clock; ``error`` where it failed."""

    due_s: float
    output_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run of a load."""

    requests: tuple[Seen, ...]

    @property
    def completed(self) -> tuple[Seen, ...]:
        """The requests that were answered."""
        return tuple(seen for seen in self.requests if seen.error is None)

    @property
    def errors(self) -> list[str]:
        """Why the others were not, in the order in which they failed."""
        return [seen.error for seen in self.requests if seen.error is not None]

    def milliseconds(self, metric: str) -> list[float]:
        """Return the samples of a metric; a request of one token has no TPOT and no ITL."""
        found: list[float] = []
        for seen in self.completed:
            first, last = seen.output_s[0], seen.output_s[-1]
            match metric:
                case "ttft":
                    found.append(first - seen.due_s)
                case "tpot" if seen.num_tokens > 1:
                    found.append((last - first) / (seen.num_tokens - 1))
                case "itl":
                    found += [b - a for a, b in itertools.pairwise(seen.output_s)]
                case "e2el":
                    found.append(last - seen.due_s)
        return [1000 * seconds for seconds in found]

    def figures(self, percentiles: Sequence[float] = (99,)) -> Iterator[Figure]:
        """Yield mean, median and percentiles of each metric, the throughputs and the counts.

        At least one request must have been answered.
        """
        for metric in METRICS:
            samples = self.milliseconds(metric)
            if samples:
                for name, value in (
                    ("mean", statistics.fmean(samples)),
                    ("median", statistics.median(samples)),
                    *((f"p{p:g}", float(np.percentile(samples, p))) for p in percentiles),
                ):
                    yield _figure(f"{name}_{metric}_ms", "ms", len(samples), value)
        start_s = min(seen.due_s for seen in self.requests)
        completed = self.completed
        elapsed_s = max(seen.output_s[-1] for seen in completed) - start_s
        num_new = sum(seen.num_tokens for seen in completed)
        num_all = num_new + sum(seen.num_prompt_tokens for seen in completed)
        for name, unit, count in (
            ("request_throughput", "requests/s", len(completed)),
            ("output_throughput", "tokens/s", num_new),
            ("total_token_throughput", "tokens/s", num_all),
        ):
            yield _figure(name, unit, len(completed), count / elapsed_s)
        for name, count in (("completed", len(completed)), ("failed", len(self.errors))):
            yield _figure(name, "requests", len(self.requests), count)


def _figure(name: str, unit: str, count: int, value: float) -> Figure:
    return Figure(name=name, unit=unit, n=count, median=value, spread=0.0)


def make_prompts(
    dataset: str, count: int, *, input_len: int, prefix_len: int, vocab_size: int, seed: int
) -> Prompts:
    """Return prompts of random tokens; those of ``shared-prefix`` begin with the same ones."""
    rng = np.random.default_rng(seed)
    num_shared = min(prefix_len, input_len - 1) if dataset == "shared-prefix" else 0
    shared = rng.integers(0, vocab_size, num_shared)
    return [
        np.concatenate((shared, rng.integers(0, vocab_size, input_len - num_shared))).tolist()
        for _ in range(count)
    ]


def arrival_offsets(arrival: str, count: int, rate: float, seed: int) -> list[float]:
    """Return the seconds from the start at which each request is due; the first at once.

    ``poisson`` has gaps of an exponential distribution; an infinite rate has none.
    """
    if rate == float("inf"):
        return [0.0] * count
    if arrival == "fixed":
        return [i / rate for i in range(count)]
    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


# Sends one prompt, due at a moment of the client's clock, and tells what it saw.
Ask = Callable[[Prompt, float], Awaitable[Seen]]


async def closed_loop(
    ask: Ask, prompts: Sequence[Prompt], concurrency: int, report: Callable[[int], None]
) -> LoadResult:
    """Run prompts with that many under way, each new one as soon as another has ended."""
    left = iter(prompts)
    done: list[Seen] = []

    async def client() -> None:
        for prompt in left:
            done.append(await _seen(ask, prompt, time.perf_counter()))
            report(len(done))

    await _all([client() for _ in range(concurrency)])
    return LoadResult(tuple(done))


async def open_loop(
    ask: Ask,
    prompts: Sequence[Prompt],
    offsets_s: Sequence[float],
    report: Callable[[int], None],
) -> LoadResult:
    """Send each prompt at its time, whatever comes back."""
    start_s = time.perf_counter()
    done: list[Seen] = []

    async def client(prompt: Prompt, offset_s: float) -> None:
        due_s = start_s + offset_s
        await asyncio.sleep(due_s - time.perf_counter())
        done.append(await _seen(ask, prompt, due_s))
        report(len(done))

    await _all([client(p, offset_s) for p, offset_s in zip(prompts, offsets_s, strict=True)])
    return LoadResult(tuple(done))


def engine_asker(llm: AsyncLLM, params: SamplingParams) -> Ask:
    """Return what asks an engine in this process."""

    async def ask(prompt: Prompt, due_s: float) -> Seen:
        seen = Seen(due_s)
        async with llm.generate(prompt, params) as stream:
            async for output in stream:
                if output.error is not None:
                    raise EngineDeadError(f"[bench] request: {output.error}")
                seen.output_s.append(time.perf_counter())
                seen.num_prompt_tokens = len(output.prompt_token_ids)
                seen.num_tokens += sum(len(answer.token_ids) for answer in output.outputs)
        return seen

    return ask


async def _seen(ask: Ask, prompt: Prompt, due_s: float) -> Seen:
    """Return what came of a request; one that its server fails does not end the run."""
    try:
        return await ask(prompt, due_s)
    except ServerError as error:
        return Seen(due_s, error=str(error))


async def _all(clients: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all clients; the first that raises ends the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
