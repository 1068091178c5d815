"""Time the scheduler and what it makes of memory: paging, chunks, the prefix cache. One table.

    python -m benchmarks.bench_scheduler [--only WORD] [--quick]

1. ``step``: schedule and update with a worker that answers at once, by sequence.
2. ``soak``: 10,000 requests through the scheduler, requests a second and blocks left over.
3. ``lookup``: naming and finding a prompt of 1,000 tokens; blocks kept and evicted under churn.
4. ``paging``: sequences that fit into a fixed memory and tokens a second, one block as long as the
   context against blocks of 16, on SmolLM2-135M Q4_1.
5. ``blocks``: tokens a second of block sizes 8 to 128.
6. ``chunks``: the longest gaps between tokens of decodes while a long prompt prefills.
7. ``hits``: time to the first token of 1,000 tokens when 0 to 100 % of them are there, and what
   traffic without a hit pays.

``--quick`` takes shorter prompts and fewer repeats. A limit stands beside each figure that has one.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.lines import Line
from pyvt import hub
from pyvt.config import SchedulerConfig, engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.messages import EngineCoreRequest, ModelRunnerOutput, SchedulerOutput
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager

MODEL = "smollm2-135m"
BLOCK_SIZE = 16
KV_TOKENS = 2048  # of the fixed memory
CONTEXT = 256  # the longest block


def request(name: str, prompt: list[int], num_new: int) -> EngineCoreRequest:
    """Return a greedy request that ends by its length."""
    return EngineCoreRequest(
        request_id=name,
        prompt=None,
        prompt_token_ids=tuple(prompt),
        sampling_params=SamplingParams(
            max_tokens=num_new, temperature=0.0, seed=0, ignore_eos=True
        ),
        eos_token_ids=frozenset(),
        arrival_s=0.0,
    )


def scheduler_of(num_blocks: int, *, has_cache: bool = True, **config: int) -> Scheduler:
    """Return a scheduler without a model."""
    hasher = BlockHasher(BLOCK_SIZE) if has_cache else None
    manager = KVCacheManager(num_blocks, BLOCK_SIZE)
    return Scheduler(SchedulerConfig(**config), manager, hasher=hasher)


class NullWorker:
    """Answers each step with a token for each request that is up to date."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def __call__(self, step: SchedulerOutput) -> ModelRunnerOutput:
        for new in step.new_requests:
            known = len(new.prompt_token_ids) + len(new.output_token_ids)
            self._left[new.request_id] = known - new.num_computed_tokens
        sampled = {}
        for name, count in step.num_scheduled_tokens.items():
            self._left[name] -= count
            if self._left[name] == 0:
                sampled[name] = (7,)
                self._left[name] = 1
        return ModelRunnerOutput(sampled_token_ids=sampled)


def step_cost(is_quick: bool) -> Iterator[Line]:
    """Decode steps of 1 and of 32 requests."""
    for num_reqs in (1, 32):
        scheduler, worker = scheduler_of(40_000), NullWorker()
        for i in range(num_reqs):
            scheduler.add_request(request(str(i), [i] * 100, 3000))
        spans = []
        for _ in range(200 if is_quick else 1500):
            start = time.perf_counter()
            step = scheduler.schedule()
            decided = time.perf_counter()
            answer = worker(step)
            answered = time.perf_counter()
            scheduler.update_from_output(step, answer)
            spans.append(time.perf_counter() - answered + decided - start)
        per_request = statistics.mean(spans[10:]) / num_reqs * 1e6
        limit = 8.0 if num_reqs == 32 else None
        yield Line(f"step: schedule and update, {num_reqs} requests", per_request, "us/seq", limit)


def soak(is_quick: bool) -> Iterator[Line]:
    """Requests that come while others run, in a pool that is too small for all rows."""
    count = 1000 if is_quick else 10_000
    scheduler, worker = scheduler_of(600), NullWorker()
    start, added = time.perf_counter(), 0
    while added < count or scheduler.num_unfinished_requests:
        while added < count and scheduler.num_unfinished_requests < 200:
            prompt = [added % 7] * 40 + [added] * (added % 200)
            scheduler.add_request(request(str(added), prompt, 8 + added % 24))
            added += 1
        step = scheduler.schedule()
        scheduler.update_from_output(step, worker(step))
    seconds = time.perf_counter() - start
    scheduler.check_integrity()
    pool, stats = scheduler.kv_cache_manager.pool, scheduler.stats()
    yield Line(f"soak: {count} requests, requests a second", count / seconds, "1/s")
    yield Line("soak: preemptions", stats.num_preemptions, "")
    yield Line("soak: blocks held at the end", pool.num_blocks - pool.num_free_blocks, "", 0)


def lookup(is_quick: bool) -> Iterator[Line]:
    """Naming and finding, and churn of a cache that is half as large as what is asked for."""
    repeats = 20 if is_quick else 200
    hasher, prompt = BlockHasher(BLOCK_SIZE), list(range(1000))
    scheduler, worker = scheduler_of(200), NullWorker()
    scheduler.add_request(request("a", prompt, 1))
    step = scheduler.schedule()
    scheduler.update_from_output(step, worker(step))
    names: list[bytes] = []
    hasher.extend(names, prompt)
    manager = scheduler.kv_cache_manager

    def name() -> None:
        hasher.extend([], prompt)

    found = _median_us(lambda: manager.find_prefix(names, 999), repeats)
    yield Line("lookup: name 1,000 tokens", _median_us(name, repeats), "us")
    yield Line("lookup: find 1,000 tokens", found, "us")
    yield Line(
        "lookup: find nothing", _median_us(lambda: manager.find_prefix([b""], 999), 20), "us"
    )
    for turn in range(40):
        scheduler.add_request(request(f"b{turn}", [turn % 7] * 1000, 1))
        while scheduler.num_unfinished_requests:
            step = scheduler.schedule()
            scheduler.update_from_output(step, worker(step))
    stats = scheduler.stats()
    yield Line("lookup: blocks kept of 200", stats.num_kept_blocks, "blocks")
    yield Line("lookup: evictions in 40 prompts of 62 blocks", stats.num_evictions, "blocks")


def paging(is_quick: bool) -> Iterator[Line]:
    """One block as long as the context against blocks of 16, in the same memory, in turns."""
    lengths = [8 + (37 * i) % 56 for i in range(12 if is_quick else 36)]
    engines = {}
    for size in (CONTEXT, BLOCK_SIZE):
        fitting = KV_TOKENS // size
        settings = {"num_blocks": fitting}
        if size == CONTEXT:
            # Slots as long as the context never grow: what is kept free for growth is no memory.
            settings = {"num_blocks": 2 * fitting + 1, "max_num_seqs": fitting}
        engines[size] = _engine(block_size=size, enable_prefix_caching=False, **settings)
    found = [
        {size: _serve(engine, lengths, 16 if is_quick else 64) for size, engine in engines.items()}
        for _ in range(1 if is_quick else 3)
    ]
    for size in engines:
        name, (most, _) = f"blocks of {size}", found[0][size]
        rate = statistics.median(served[size][1] for served in found)
        yield Line(f"paging: most sequences at once, {name}", most, "sequences")
        yield Line(f"paging: generated tokens, {name}", rate, "1/s")
    ratios = [served[BLOCK_SIZE][1] / served[CONTEXT][1] for served in found]
    yield Line("paging: paged over fixed", statistics.median(ratios), "x")


def blocks(is_quick: bool) -> Iterator[Line]:
    """The same batch in blocks of different sizes, in turns."""
    num_new = 16 if is_quick else 48
    engines = {
        size: _engine(
            block_size=size, num_blocks=8 * KV_TOKENS // size, enable_prefix_caching=False
        )
        for size in (8, 16, 32, 64, 128)
    }
    found = [
        {size: _serve(engine, [64] * 8, num_new)[1] for size, engine in engines.items()}
        for _ in range(1 if is_quick else 3)
    ]
    for size in engines:
        rate = statistics.median(rates[size] for rates in found)
        ratio = statistics.median(rates[size] / rates[BLOCK_SIZE] for rates in found)
        yield Line(f"blocks: generated tokens, blocks of {size}", rate, "1/s")
        yield Line(f"blocks: over blocks of {BLOCK_SIZE}, blocks of {size}", ratio, "x")


def chunks(is_quick: bool) -> Iterator[Line]:
    """Gaps between tokens of four decodes while a long prompt prefills, by chunk."""
    length = 512 if is_quick else 1024
    for chunk in (64, 256, 1024):
        alone, beside = _beside_prefill(_long_engine(chunk), length)
        yield Line(f"chunks: decode alone, chunk {chunk}", alone * 1e3, "ms")
        for share in (50, 99):
            name = f"chunks: decode p{share} beside prefill, chunk {chunk}"
            yield Line(name, _percentile(beside, share) * 1e3, "ms")
        yield Line(f"chunks: prefill, chunk {chunk}", length / sum(beside), "tokens/s")
    length = 1024 if is_quick else 7900
    engine = _long_engine(256)
    alone, beside = _beside_prefill(engine, length)
    # The cache has the start of the prompt, so its last chunks come again, now alone.
    engine.add_request("end", [*_long_prompt(length)[: length - 600], *[7] * 600], _params(1))
    last = max(_drain(engine))
    name = f"chunks: decode p99 beside {length} tokens, of last chunk and decode alone"
    yield Line(name, _percentile(beside, 99) / (last + alone), "x", 1.25)


def _beside_prefill(engine: LLMEngine, length: int) -> tuple[float, list[float]]:
    """Return the seconds of a step of four decodes, and of each one while a prompt prefills."""
    for i in range(4):
        engine.add_request(f"d{i}", [i + 5] * 16, _params(200))
    _step_times(engine, 8)
    alone = statistics.median(_step_times(engine, 10))
    engine.add_request("long", _long_prompt(length), _params(1))
    beside = []
    while "long" in engine.core.scheduler.unfinished_request_ids:
        beside += _step_times(engine, 1)
    engine.abort(engine.unfinished_request_ids)
    return alone, beside


def _long_prompt(length: int) -> list[int]:
    return [11 + i % 900 for i in range(length)]


def _long_engine(chunk: int) -> LLMEngine:
    return _engine(
        max_model_len=8192,
        num_blocks=1024,
        max_prefill_chunk=chunk,
        max_num_batched_tokens=chunk + 64,
    )


def _percentile(values: list[float], share: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * share // 100)]


def hits(is_quick: bool) -> Iterator[Line]:
    """Time to the first token by the share of the prompt that is there."""
    length, repeats = (304, 2) if is_quick else (1000, 5)
    engine = _engine(num_blocks=800, max_model_len=1024)
    off = _engine(num_blocks=800, max_model_len=1024, enable_prefix_caching=False)
    seed = iter(range(10_000))

    def prompt(shared: int, base: list[int]) -> list[int]:
        key = next(seed)
        return base[:shared] + [20 + (key * 31 + i * 7) % 20_000 for i in range(length - shared)]

    cold, plain = [], []
    for turn in range(repeats + 1):
        # Who goes first changes, so that what drifts meets both.
        for times, one in ((cold, engine), (plain, off))[:: 1 if turn % 2 else -1]:
            times.append(_ttft(one, prompt(0, [])))
    ratios = [with_cache / without for with_cache, without in zip(cold[1:], plain[1:], strict=True)]
    cold_s = statistics.median(cold[1:])
    yield Line(f"hits: first token of {length} tokens, cold", cold_s * 1e3, "ms")
    yield Line("hits: cold, over a cache that is off", statistics.median(ratios), "x")
    yield Line(
        "hits: what the cache does to a cold prompt, of its time", _own_share(cold_s), "%", 1.0
    )
    base = prompt(0, [])
    _ttft(engine, base)
    for share in (25, 50, 75, 100):
        spans = [_ttft(engine, prompt(length * share // 100, base)) for _ in range(repeats)]
        ratio = statistics.median(spans) / cold_s * 100
        yield Line(f"hits: {share} % there, of cold", ratio, "%", 3.0 if share == 100 else None)
    kept, plan = engine.core.scheduler.stats().num_kept_blocks, engine.plan
    assert plan is not None, "the model came of files"
    yield Line("hits: blocks kept for reuse", kept, "")
    yield Line("hits: memory of them", kept * plan.kv_bytes / 800 / 2**20, "MiB")


def _own_share(cold_s: float) -> float:
    """Return the time of naming, looking for and publishing the blocks of 1,000 tokens, in % of
    ``cold_s``."""
    hasher, spans = BlockHasher(BLOCK_SIZE), []
    for turn in range(20):
        manager, names = KVCacheManager(100, BLOCK_SIZE), list[bytes]()
        start = time.perf_counter()
        hasher.extend(names, [turn, *range(999)])
        manager.find_prefix(names, 999)
        named = time.perf_counter()
        blocks = manager.start("r", names, 0, 1000)
        assert blocks is not None, "an empty pool has room"
        found = time.perf_counter()
        manager.publish(blocks, names, 1000)
        spans.append(named - start + time.perf_counter() - found)
    return statistics.median(spans) / cold_s * 100


SECTIONS: dict[str, Callable[[bool], Iterator[Line]]] = {
    "step": step_cost,
    "soak": soak,
    "lookup": lookup,
    "paging": paging,
    "blocks": blocks,
    "chunks": chunks,
    "hits": hits,
}


def _median_us(call: Callable[[], object], repeats: int) -> float:
    spans = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        spans.append(time.perf_counter() - start)
    return statistics.median(spans) * 1e6


def _engine(**settings: object) -> LLMEngine:
    settings = {"max_model_len": CONTEXT, **settings}
    return build_engine(engine_config(str(hub.pull(MODEL, print)), **settings))


def _params(num_new: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True)


def _serve(engine: LLMEngine, lengths: list[int], num_new: int) -> tuple[int, float]:
    """Return the most requests that ran at once, and generated tokens a second."""
    engine.add_request("warm", [5] * 8, _params(2))
    _drain(engine)
    for i, length in enumerate(lengths):
        engine.add_request(str(i), [i + 5] * length, _params(num_new))
    most, start = 0, time.perf_counter()
    while engine.has_unfinished_requests:
        engine.step()
        most = max(most, engine.core.scheduler.stats().num_running)
    return most, len(lengths) * num_new / (time.perf_counter() - start)


def _step_times(engine: LLMEngine, count: int) -> list[float]:
    spans = []
    for _ in range(count):
        start = time.perf_counter()
        engine.step()
        spans.append(time.perf_counter() - start)
    return spans


def _drain(engine: LLMEngine) -> list[float]:
    """Run an engine until nothing is left; return the seconds of each step."""
    spans = []
    while engine.has_unfinished_requests:
        spans += _step_times(engine, 1)
    return spans


def _ttft(engine: LLMEngine, prompt: list[int]) -> float:
    start = time.perf_counter()
    engine.add_request("r", prompt, _params(1))
    _drain(engine)
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="sections whose name holds this word")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    for name, section in SECTIONS.items():
        if args.only in name:
            for line in section(args.quick):
                print(line.text(), flush=True)


if __name__ == "__main__":
    main()
