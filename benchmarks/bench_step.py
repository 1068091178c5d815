"""Where the time of a decode step goes: each kind of op of its plan, and what is around the plan.

    python -m benchmarks.bench_step MODEL [--context 128 512] [--steps 48]

For each context two tables. The first is of one replayed plan, run op by op with a clock between
them: calls, microseconds and share of each kind of op. The second is of whole steps of ``LLM``, one
greedy request: the plan, and the Python of worker, engine and text around it. A figure is the lower
decile over steps, since a neighbour on the machine only ever adds; the median stands beside it.
"""

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.core import EngineCore
from pyvt.llm import LLM
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.sampling_params import SamplingParams
from pyvt.worker import model_runner
from pyvt.worker.graph_runner import GraphRunner
from pyvt.worker.model_runner import ModelRunner

# What is timed of a step, each part inside the one before it or beside it.
PARTS = (
    (EngineCore, "step"),
    (ModelRunner, "execute_model"),
    (model_runner, "prepare_inputs"),
    (GraphRunner, "forward"),
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


def step_spans(llm: LLM, context: int, num_steps: int) -> dict[str, list[float]]:
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
    params = SamplingParams(temperature=0, max_tokens=num_steps + 2, ignore_eos=True)
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    llm.engine.add_request("timed", prompt, params)
    llm.engine.step()  # the prompt
    with ExitStack() as stack:
        for owner, name in PARTS:
            stack.enter_context(patch.object(owner, name, timed(name, getattr(owner, name))))
        while llm.engine.has_unfinished_requests:
            start = time.perf_counter()
            llm.engine.step()
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=48)
    args = parser.parse_args()
    settings = {"backend": "cpu", "max_model_len": 1024, "num_blocks": 128}
    llm = LLM.from_engine(build_engine(engine_config(args.model, **settings)))
    runner = llm.engine.core.runner
    assert isinstance(runner, ModelRunner), "the engine runs a model"
    for context in args.context:
        spans = step_spans(llm, context, args.steps)
        print(f"\ncontext {context}\n{step_table(spans)}\n")
        print(plan_table(runner.graphs.plan_of(1), args.steps))


if __name__ == "__main__":
    main()
