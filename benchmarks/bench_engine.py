"""Time the engine around the model: steps, events, memory. Prints one table.

    python -m benchmarks.bench_engine [--only WORD] [--quick]

1. Overhead of a step: schedule, prepare, sample, detokenise, dispatch, with a null model whose
   vocabulary is 49,152, through the engine's thread into one channel a request; and the share of
   it in a step of SmolLM2-135M Q4_1.
2. Events: 10,000 requests with 320,000 tokens through the thread, with a worker that computes
   nothing; the first event, refusals of a full queue, shutdown.
3. Memory: the slope of the resident size over 10,000 requests that come one after another.
4. Hybrid: decode of 8 requests against 1 on small hybrids, without and with experts, and the first
   token of a turn behind 2,000 tokens of history against that of the history itself.

Sections are in ``SECTIONS``. ``--quick`` runs a tenth. A limit stands beside each figure that has
one.
"""

import argparse
import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.lines import Line
from pyvt import backends, hub
from pyvt.config import EngineConfig, SchedulerConfig, engine_config
from pyvt.config.cache import CacheGroup
from pyvt.dispatch import use_backend
from pyvt.engine.build import build_engine
from pyvt.engine.core import EngineCore, Runner
from pyvt.engine.engine_thread import EngineThread
from pyvt.engine.events import EventChannel, event_bound
from pyvt.engine.input_processor import InputLimits, InputProcessor
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.memory_plan import best_backend
from pyvt.engine.output_processor import OutputProcessor
from pyvt.errors import RequestError
from pyvt.messages import ModelRunnerOutput, SchedulerOutput
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.scheduler import Scheduler
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.testing.bench_engine import EngineBench
from pyvt.testing.fakes import FakeTokenizer
from pyvt.testing.shape_models import ShapeModel
from pyvt.tokenizer.base import Tokenizer
from pyvt.worker.kv_cache import KVCache
from pyvt.worker.model_runner import ModelRunner

MODEL = "smollm2-135m"
# Small hybrids, and the least that 8 requests gain where one request is bound by memory: in f32 a
# step reads 320 MB that 8 requests share. In Q8_0 and Q4_K_M 8 rows are bound by arithmetic and by
# their states, which they do not share, and so is a tiny model, all of which stays in a cache. With
# experts not even all bytes are shared: of 8 experts one token reads 2, 8 tokens read 7.2.
HYBRID_BATCHES = {
    "small-hybrid:f32": 4.0,
    "small-hybrid:q8_0": None,
    "small-hybrid:q4_k_m": None,
    "tiny-hybrid-dense:f32": None,
    "tiny-hybrid-dense:q4_k_m": None,
    "tiny-hybrid:f32": None,
    "tiny-hybrid:q4_k_m": None,
}
VOCAB_SIZE = 49_152
MAX_MODEL_LEN = 1024
BLOCK_SIZE = 16
WARM_UP_STEPS = 20


class NullModel:
    """Logits that cost nothing, in place of a model."""

    def __init__(self, num_rows: int) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB_SIZE)
        rng = np.random.default_rng(0)
        self.logits = rng.standard_normal((num_rows, VOCAB_SIZE)).astype(np.float32)
        self.hidden = np.zeros((SchedulerConfig().max_num_batched_tokens, 8), np.float32)

    def forward(self, input_ids: Any, batch: Any) -> Any:
        return self.hidden[: batch.num_tokens]

    def compute_logits(self, hidden: Any) -> Any:
        return self.logits[: len(hidden)]


class NullRunner:
    """A worker that samples the same token for every row that is up to date."""

    def __init__(self) -> None:
        self.num_missing: dict[str, int] = {}

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        missing = self.num_missing
        for request_id in output.finished_request_ids:
            missing.pop(request_id, None)
        for new in output.new_requests:
            num_known = len(new.prompt_token_ids) + len(new.output_token_ids)
            missing[new.request_id] = num_known - new.num_computed_tokens
        sampled = {}
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            missing[request_id] -= num_tokens
            if missing[request_id] == 0:
                missing[request_id] = 1
                sampled[request_id] = (ord("a"),)
        return ModelRunnerOutput(sampled_token_ids=sampled)


@dataclass(slots=True)
class Stamped:
    """A worker that notes when each step comes to it, and what its model took."""

    runner: Any
    entered_s: list[float] = field(default_factory=list)
    model_s: list[float] = field(default_factory=list)

    def time_model(self) -> None:
        """Note the time of the model's own calls in each step."""
        graphs = self.runner.graphs
        self.runner.graphs = SimpleNamespace(
            forward=self._timed(graphs.forward),
            logits=self._timed(graphs.logits),
            start_greedy=self._timed(graphs.start_greedy),
        )

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.entered_s.append(time.perf_counter())
        self.model_s.append(0.0)
        answer: ModelRunnerOutput = self.runner.execute_model(output)
        return answer

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.model_s[-1] += time.perf_counter() - start
            return result

        return timed


def engine_of(runner: Runner, tokenizer: Tokenizer, *, num_blocks: int, num_seqs: int) -> LLMEngine:
    """Return an engine over a worker that has no model."""
    config = engine_config("null", max_model_len=MAX_MODEL_LEN, max_num_seqs=num_seqs)
    core = EngineCore(Scheduler(config.scheduler, KVCacheManager(num_blocks, BLOCK_SIZE)), runner)
    limits = InputLimits(
        vocab_size=tokenizer.vocab_size, max_model_len=MAX_MODEL_LEN, eos_token_ids=frozenset()
    )
    return LLMEngine(
        core,
        InputProcessor(tokenizer, None, limits),
        OutputProcessor(tokenizer, core.clock),
        config=config,
    )


def stream_all(engine: LLMEngine, num_reqs: int, num_tokens: int, **params: Any) -> None:
    """Stream requests through the engine's thread into channels, to their ends."""
    thread = EngineThread(engine)
    settings = SamplingParams(**{"max_tokens": num_tokens, "ignore_eos": True, "seed": 1} | params)
    requests = [engine.process(f"r{i}", [100 + i] * 20, settings) for i in range(num_reqs)]
    channels = [EventChannel(event_bound(request)) for request in requests]
    for request, channel in zip(requests, channels, strict=True):
        thread.submit([request], channel, is_stream=True)
    for channel in channels:
        while not is_last(channel.get()):
            pass
    thread.shutdown()


def is_last(event: Any) -> bool:
    assert isinstance(event, RequestOutput), "no request fails here"
    return event.finished


def step_periods_us(stamps: Sequence[float]) -> list[float]:
    """Return the microseconds from step to step, without the first steps."""
    return [1e6 * float(d) for d in np.diff(stamps)[WARM_UP_STEPS:]]


def overhead(scale: int) -> Iterator[Line]:
    """Time a step around a null model, and around SmolLM2."""
    smollm = build_engine(engine_config(str(hub.pull(MODEL, print)), max_model_len=MAX_MODEL_LEN))
    tokenizer = smollm.input_processor.tokenizer
    for num_reqs, params, limit in ((32, GREEDY, 25.0), (1, GREEDY, None), (32, RANDOM, None)):
        runner = Stamped(null_worker(num_reqs))
        engine = engine_of(runner, tokenizer, num_blocks=4096, num_seqs=64)
        stream_all(engine, num_reqs, 400 // scale + WARM_UP_STEPS, **params)
        periods = step_periods_us(runner.entered_s)
        how = "greedy" if params is GREEDY else "sampled"
        value = statistics.median(periods) / num_reqs
        yield Line(f"step, null model, {how}, batch {num_reqs}", value, "µs/sequence", limit)
    core: Any = smollm.core
    stamped = core.runner = Stamped(core.runner)
    stamped.time_model()
    stream_all(smollm, 1, 200 // scale + WARM_UP_STEPS, **GREEDY)
    periods = step_periods_us(stamped.entered_s)
    model = [1e6 * s for s in stamped.model_s[:-1][WARM_UP_STEPS:]]
    rest = [whole - own for whole, own in zip(periods, model, strict=True)]
    yield Line("model's own time, SmolLM2, batch 1", statistics.median(model), "µs/step")
    share = statistics.median(rest) / statistics.median(model)
    yield Line("step around it, as a share of it", 100 * share, "%", 8.0)


GREEDY: dict[str, Any] = {"temperature": 0.0}
RANDOM: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}


def null_worker(num_reqs: int) -> ModelRunner:
    config: EngineConfig = engine_config("null", max_model_len=MAX_MODEL_LEN, max_num_seqs=64)
    cache = KVCache(
        block_size=BLOCK_SIZE,
        num_blocks=4096,
        groups=(CacheGroup(kind="full"),),
        layers=(),
        layer_groups=(),
    )
    model: Any = NullModel(num_reqs)
    runner = ModelRunner(model, cache, config)
    # A model without ops has nothing to record.
    runner.graphs.backend = replace(runner.graphs.backend, make_plan=None)
    return runner


def events(scale: int) -> Iterator[Line]:
    """Push 10,000 requests through the thread; the sink counts, so the reader is not measured."""
    num_requests, num_tokens = 10_000 // scale, 32
    engine = engine_of(NullRunner(), FakeTokenizer(), num_blocks=100_000, num_seqs=256)
    thread = EngineThread(engine)
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=1)
    requests = [engine.process(f"r{i}", "a" * 20, params) for i in range(num_requests)]
    sink: SimpleQueue[Any] = SimpleQueue()
    start = time.perf_counter()
    thread.submit(requests[:1], sink, is_stream=True)
    sink.get()
    yield Line("first event of an idle thread", 1e6 * (time.perf_counter() - start), "µs")
    num_left, num_events = num_requests - 1, 0
    start = time.perf_counter()
    for request in requests[1:]:
        thread.submit([request], sink, is_stream=True)
    submitted_s = time.perf_counter() - start
    while num_left + 1:
        num_left -= is_last(sink.get())
        num_events += 1
    elapsed_s = time.perf_counter() - start
    yield Line("submit, beside the running thread", 1e6 * submitted_s / num_requests, "µs/request")
    yield Line(f"events, {num_requests:,} requests", num_events / elapsed_s, "events/s")
    yield Line("events that came of those due", num_events / (num_requests * 32 - 1), "", 1.0, 1.0)
    start = time.perf_counter()
    thread.shutdown()
    yield Line("shutdown and join of an idle thread", 1e6 * (time.perf_counter() - start), "µs")
    yield from full_queue(scale)


def full_queue(scale: int) -> Iterator[Line]:
    """Offer ten times what a held thread accepts, then drain it."""
    limit = 1000 // scale
    may_go = threading.Event()
    null = NullRunner()
    runner = SimpleNamespace(execute_model=lambda step: may_go.wait() and null.execute_model(step))
    engine = engine_of(runner, FakeTokenizer(), num_blocks=100_000, num_seqs=256)
    thread = EngineThread(engine, max_requests=limit)
    params = SamplingParams(max_tokens=1, ignore_eos=True, seed=1)
    sink: SimpleQueue[Any] = SimpleQueue()
    num_refused = 0
    start = time.perf_counter()
    for i in range(10 * limit):
        try:
            thread.submit([engine.process(f"r{i}", "aaa", params)], sink, is_stream=False)
        except RequestError as error:
            if error.code != "queue_full":
                raise
            num_refused += 1
    offered_s = time.perf_counter() - start
    may_go.set()
    thread.shutdown(is_drain=True)
    num_ended = sum(is_last(sink.get_nowait()) for _ in range(sink.qsize()))
    yield Line("a full queue: refused of those offered", num_refused / (10 * limit), "", 0.9, 0.9)
    yield Line("a full queue: an offer", 1e6 * offered_s / (10 * limit), "µs")
    yield Line("a full queue: ends of those accepted", num_ended / limit, "", 1.0, 1.0)


def memory(scale: int) -> Iterator[Line]:
    """Return the slope of the resident size over requests that come one after another."""
    engine = engine_of(NullRunner(), FakeTokenizer(), num_blocks=1000, num_seqs=64)
    thread = EngineThread(engine)
    params = SamplingParams(max_tokens=8, ignore_eos=True, seed=1)
    sizes = []
    batch, num_batches = 500 // scale, 20
    for number in range(num_batches):
        for i in range(batch):
            request = engine.process(f"{number}-{i}", "a" * 20, params)
            channel = EventChannel(event_bound(request))
            thread.submit([request], channel, is_stream=True)
            while not is_last(channel.get()):
                pass
        gc.collect()
        sizes.append(resident_kib())
    thread.shutdown()
    half = sizes[num_batches // 2 :]
    slope = float(np.polyfit(np.arange(len(half)) * batch, half, 1)[0])
    yield Line(f"resident size over {num_batches * batch:,} requests", slope, "KiB/request", 0.1)
    yield Line("threads at the end", threading.active_count(), "")


def resident_kib() -> float:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def hybrid(scale: int) -> Iterator[Line]:
    """Return what batches and turns of a chat gain on a tiny hybrid, with its native kernels."""
    steps, repeats = 64 // scale + 1, 5
    for name, least in HYBRID_BATCHES.items():
        bench = EngineBench(ShapeModel.named(f"shape:{name}").gguf())
        bench.decode(64, steps, 8)
        # A neighbour on the machine only ever adds to a step: the lower decile is its own.
        alone, together = (
            statistics.quantiles(
                [s for _ in range(repeats) for s in bench.decode(64, steps, count)[1]], n=10
            )[0]
            for count in (1, 8)
        )
        yield Line(f"{name}: a decode step of 1 request", 1e3 * alone, "ms")
        ratio = 8 * alone / together
        yield Line(f"{name}: tokens/s of 8 over those of 1", ratio, "", least=least)
    path = ShapeModel.named("shape:tiny-hybrid:q4_k_m").gguf()
    chat = EngineBench(path, max_model_len=2048, num_blocks=512)
    colds, warms = [], []
    for _ in range(repeats):
        history = chat.random_ids(2000)
        cold_s, answer = chat.first_token(history, 8)
        warm_s, _ = chat.first_token([*history, *answer, *chat.random_ids(24)], 8)
        colds.append(cold_s)
        warms.append(warm_s)
    cold, warm = statistics.median(colds[1:]), statistics.median(warms[1:])
    yield Line("hybrid: first token of 2,000 new tokens", 1e3 * cold, "ms")
    yield Line("hybrid: first token of the turn behind them", 1e3 * warm, "ms")
    yield Line("hybrid: the turn's first token over the cold one's", warm / cold, "", limit=0.1)


SECTIONS: dict[str, Callable[[int], Iterator[Line]]] = {
    "overhead": overhead,
    "events": events,
    "memory": memory,
    "hybrid": hybrid,
}


def main() -> None:
    """Run the sections and print their lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    name = best_backend()
    backends.load(name)
    use_backend(name)
    for section, lines in SECTIONS.items():
        if args.only in (None, section):
            for line in lines(10 if args.quick else 1):
                print(line.text(), flush=True)


if __name__ == "__main__":
    main()
