"""Where the time of a decode step goes: each kind of op of its plan, and what is around the plan.

    python -m benchmarks.bench_step MODEL [--context 128 512] [--steps 48] [--prefill 256]
        [--out FOLDER]

MODEL is a .gguf file, an alias, or shape:SHAPE:FORMAT. For each context two tables. The first is of
whole steps of the engine, one greedy request: the plan, and the Python of worker, engine and text
around it, whose share is told and, with ``--out``, written to ``step-<model>.json``. The second is
of one replayed plan, run op by op with a clock between them: calls, microseconds and share of each
kind of op. A figure is the lower decile over steps, since a neighbour on the machine only ever
adds; the median stands beside it. The last table is of the step of a prompt, op by op.
"""

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.model_records import model_file, write_model_record
from pyvt.backends.cpu import _native
from pyvt.config import engine_config
from pyvt.dispatch.table import Candidate, Op, tapped
from pyvt.engine.build import build_engine
from pyvt.engine.core import EngineCore
from pyvt.engine.llm_engine import LLMEngine
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing.docs_loads import OUTSIDE, OUTSIDE_AIM
from pyvt.testing.record import Figure
from pyvt.worker import model_runner
from pyvt.worker.graph_runner import MAX_PLAN_TOKENS, GraphRunner
from pyvt.worker.model_runner import ModelRunner

# What is timed of a step, each part inside the one before it or beside it.
PARTS = (
    (EngineCore, "step"),
    (ModelRunner, "execute_model"),
    (model_runner, "prepare_inputs"),
    (GraphRunner, "forward"),
    (_native.Plan, "run"),
    (DecoderForCausalLM, "compute_logits"),
    (model_runner, "start_sampling"),
)


def low(samples: Sequence[float]) -> float:
    """Return the lower decile."""
    return statistics.quantiles(samples, n=10)[0] if len(samples) > 1 else samples[0]


def plan_table(plan: Any, num_runs: int) -> str:
    """Return calls, time and share of each kind of op of a plan."""
    ops = plan.ops()
    runs = [plan.timed_run() for _ in range(num_runs)]
    spent: Counter[str] = Counter()
    for op, times in zip(ops, zip(*runs, strict=True), strict=True):
        spent[op] += int(low(times))
    calls, total = Counter(ops), sum(spent.values())
    lines = [f"{'op':24} {'calls':>5} {'us':>8} {'share':>6}"]
    for op, ns in spent.most_common():
        lines.append(f"{op:24} {calls[op]:5} {ns / 1000:8.0f} {ns / total:6.1%}")
    lines.append(f"{'all':24} {len(ops):5} {total / 1000:8.0f}")
    return "\n".join(lines)


def add_request(engine: LLMEngine, name: str, prompt: list[int], num_new_tokens: int) -> None:
    """Add a greedy request."""
    params = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
    engine.add_request(name, prompt, params)


def step_spans(engine: LLMEngine, context: int, num_steps: int) -> dict[str, list[float]]:
    """Return the seconds of each part, and of ``all``, for decode steps from ``context`` on."""
    spans: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            spans[name].append(time.perf_counter() - start)
            return result

        return run

    prompt = [100 + i % 900 for i in range(context)]
    add_request(engine, "first", prompt, 3)
    while engine.has_unfinished_requests:
        engine.step()
    add_request(engine, "timed", prompt, num_steps + 2)
    generated = engine.core.stats.num_generation_tokens
    while engine.core.stats.num_generation_tokens == generated:  # the prompt
        engine.step()
    with ExitStack() as stack:
        for owner, name in PARTS:
            stack.enter_context(patch.object(owner, name, timed(name, getattr(owner, name))))
        while engine.has_unfinished_requests:
            start = time.perf_counter()
            engine.step()
            spans["all"].append(time.perf_counter() - start)
    return spans


def step_table(spans: dict[str, list[float]]) -> str:
    """Return lower decile, share and median of a step's parts."""
    total = low(spans["all"])
    lines = [f"{'part':24} {'us':>8} {'share':>6} {'median':>8}"]
    for name, seconds in spans.items():
        spent, median = low(seconds), statistics.median(seconds)
        lines.append(f"{name:24} {spent * 1e6:8.0f} {spent / total:6.1%} {median * 1e6:8.0f}")
    return "\n".join([*lines, f"{1 / total:.1f} tokens/s, median {1 / median:.1f}"])


def outside_of_plans(spans: dict[str, list[float]]) -> list[float]:
    """Return the share of each step that is not spent in the native call."""
    return [1 - run / step for run, step in zip(spans["run"], spans["all"], strict=True)]


def prefill_table(engine: LLMEngine, num_tokens: int, num_runs: int = 5) -> str:
    """Return the time of each op in the step of a prompt, the lower decile over runs."""
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0] * num_runs)
    calls: Counter[str] = Counter()
    for i in range(num_runs):
        calls.clear()

        def timed(op: Op, candidate: Candidate, args: tuple[Any, ...], i: int = i) -> None:
            start = time.perf_counter()
            op.run(candidate, args)
            spent[op.name][i] += time.perf_counter() - start
            calls[op.name] += 1

        prompt = [100 + i + (7 * j) % 900 for j in range(num_tokens)]  # no prefix of another
        add_request(engine, f"prompt {i}", prompt, 1)
        with tapped(timed):
            while engine.has_unfinished_requests:
                start = time.perf_counter()
                engine.step()
                spent["all"][i] += time.perf_counter() - start
    total = low(spent["all"])
    lines = [f"{'op':24} {'calls':>5} {'us':>8} {'share':>6}"]
    for name, seconds in sorted(spent.items(), key=lambda item: -low(item[1])):
        us = low(seconds) * 1e6
        lines.append(f"{name:24} {calls[name] or 1:5} {us:8.0f} {low(seconds) / total:6.1%}")
    return "\n".join([*lines, f"{num_tokens / total:.1f} tokens/s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--prefill", type=int, help="tokens of a prompt whose step is told too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.prefill is not None and args.prefill <= MAX_PLAN_TOKENS:
        parser.error(f"--prefill: expected more than the {MAX_PLAN_TOKENS} tokens of a plan")
    settings = {"backend": "cpu", "max_model_len": 1024, "num_blocks": 128}
    engine = build_engine(engine_config(str(model_file(args.model)), **settings))
    runner = engine.core.runner
    assert isinstance(runner, ModelRunner), "the engine runs a model"
    figures = []
    for context in args.context:
        spans = step_spans(engine, context, args.steps)
        outside = Figure.of(f"{OUTSIDE} {context}", "of a step", outside_of_plans(spans))
        figures.append(outside)
        print(f"\ncontext {context}\n{step_table(spans)}")
        print(f"{outside.median:.1%} outside of the plan, aim under {OUTSIDE_AIM:.0%}\n")
        print(plan_table(runner.graphs.plan_of(1), args.steps))
    if args.prefill is not None:
        print(f"\nprompt of {args.prefill}\n{prefill_table(engine, args.prefill)}")
    if args.out is not None:
        write_model_record(
            args.out,
            "step",
            args.model,
            figures,
            command="python -m benchmarks.bench_step",
            prompt_tokens=max(args.context),
            new_tokens=args.steps,
        )


if __name__ == "__main__":
    main()
