"""Load for an engine, and what its clients saw: the figures of ``pyvt bench latency|throughput``.

Figures, with vLLM's names, on the clock of the client:

1. TTFT: from the moment at which a request is due to its first output.
2. TPOT: from the first output to the last, by the tokens after the first.
3. ITL: between two outputs of one request.
4. E2EL: from the moment at which it is due to its last output.
5. Throughput: requests, generated tokens and all tokens by the time from the first request to the
   last output.

A closed loop keeps a number of requests under way. An open loop sends them at their times whatever
comes back, so a request that waits for a slow engine counts its waiting.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import EngineDeadError
from pyvt.sampling_params import SamplingParams
from pyvt.testing.record import Figure

METRICS = ("ttft", "tpot", "itl", "e2el")
DATASETS = ("random", "shared-prefix")
ARRIVALS = ("poisson", "fixed")

Prompts = list[list[int]]


@dataclass(slots=True)
class Seen:
    """What a client saw of one request, in seconds of its clock."""

    due_s: float
    output_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A run of a load."""

    requests: tuple[Seen, ...]

    def milliseconds(self, metric: str) -> list[float]:
        """Return the samples of a metric; a request of one token has no TPOT and no ITL."""
        found: list[float] = []
        for seen in self.requests:
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

    def figures(self) -> Iterator[Figure]:
        """Yield mean, median and p99 of each metric and the throughputs."""
        for metric in METRICS:
            samples = self.milliseconds(metric)
            if samples:
                for name, value in (
                    ("mean", statistics.fmean(samples)),
                    ("median", statistics.median(samples)),
                    ("p99", float(np.percentile(samples, 99))),
                ):
                    yield _figure(f"{name}_{metric}_ms", "ms", len(samples), value)
        start_s = min(seen.due_s for seen in self.requests)
        elapsed_s = max(seen.output_s[-1] for seen in self.requests) - start_s
        num_new = sum(seen.num_tokens for seen in self.requests)
        num_all = num_new + sum(seen.num_prompt_tokens for seen in self.requests)
        for name, unit, count in (
            ("request_throughput", "requests/s", len(self.requests)),
            ("output_throughput", "tokens/s", num_new),
            ("total_token_throughput", "tokens/s", num_all),
        ):
            yield _figure(name, unit, len(self.requests), count / elapsed_s)


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


async def closed_loop(
    llm: AsyncLLM,
    prompts: Prompts,
    params: SamplingParams,
    concurrency: int,
    report: Callable[[int], None],
) -> LoadResult:
    """Run prompts with that many under way, each new one as soon as another has ended."""
    left = iter(prompts)
    done: list[Seen] = []

    async def client() -> None:
        for prompt in left:
            done.append(await _request(llm, prompt, params, time.perf_counter()))
            report(len(done))

    await _all([client() for _ in range(concurrency)])
    return LoadResult(tuple(done))


async def open_loop(
    llm: AsyncLLM,
    prompts: Prompts,
    params: SamplingParams,
    offsets_s: Sequence[float],
    report: Callable[[int], None],
) -> LoadResult:
    """Send each prompt at its time, whatever comes back."""
    start_s = time.perf_counter()
    done: list[Seen] = []

    async def client(prompt: list[int], offset_s: float) -> None:
        due_s = start_s + offset_s
        await asyncio.sleep(due_s - time.perf_counter())
        done.append(await _request(llm, prompt, params, due_s))
        report(len(done))

    await _all([client(p, offset_s) for p, offset_s in zip(prompts, offsets_s, strict=True)])
    return LoadResult(tuple(done))


async def _request(llm: AsyncLLM, prompt: list[int], params: SamplingParams, due_s: float) -> Seen:
    seen = Seen(due_s, num_prompt_tokens=len(prompt))
    async with llm.generate(prompt, params) as stream:
        async for output in stream:
            if output.error is not None:
                raise EngineDeadError(f"[bench] request: {output.error}")
            seen.output_s.append(time.perf_counter())
            seen.num_tokens += sum(len(answer.token_ids) for answer in output.outputs)
    return seen


async def _all(clients: Sequence[object]) -> None:
    """Wait for all clients; the first that fails ends the others."""
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client)  # type: ignore[arg-type] # coroutines
