"""Whole models of a real shape on a device: prefill, and decode steps of one and of many requests.

    python -m benchmarks.bench_device_models [--backend cuda] [--tiny]

Weights are random. Steps are those of the engine, greedy, from captured graphs; a figure is the
median over steps, and the kernels of a step are counted in its graph. With ``--tiny`` models are
small and few steps are enough: for the emulator, whose times say nothing.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

from pyvt import backends
from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.sampling_params import SamplingParams
from pyvt.testing.shape_models import ShapeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a model is measured with.

    Attributes:
        models: names of shapes.
        prompt: tokens of the prompt that is prefilled.
        context: tokens of each request that decodes.
        batches: requests of a decode step.
        num_steps: decode steps that are measured.
    """

    models: tuple[str, ...]
    prompt: int
    context: int
    batches: tuple[int, ...]
    num_steps: int


REAL = Load(
    models=("shape:qwen3-0.6b:bf16", "shape:qwen3.6-35b-a3b-tenth:q4_k_m"),
    prompt=2048,
    context=128,
    batches=(1, 64),
    num_steps=40,
)
TINY = Load(
    models=("shape:tiny:bf16", "shape:tiny-hybrid:q4_k_m"),
    prompt=24,
    context=6,
    batches=(1, 3),
    num_steps=2,
)


def engine_of(name: str, backend: str, load: Load) -> LLMEngine:
    """Return an engine of a model with random weights, which are written where they are not yet."""
    path = ShapeModel.named(name).gguf()
    longest = load.prompt + load.context + load.num_steps + 8
    settings: dict[str, Any] = {"dtype": "bf16", "expand": "never", "enable_prefix_caching": False}
    return build_engine(
        engine_config(
            str(path),
            backend=backend,
            max_model_len=longest,
            max_num_seqs=max(load.batches),
            max_num_batched_tokens=max(load.prompt, max(load.batches)),
            max_prefill_chunk=load.prompt,
            **settings,
        )
    )


def add(engine: LLMEngine, count: int, num_tokens: int, max_tokens: int) -> None:
    """Add requests whose prompts have so many tokens each."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for i in range(count):
        engine.add_request(str(i), [5 + (i + 7 * at) % 250 for at in range(num_tokens)], params)


def step_seconds(engine: LLMEngine) -> list[float]:
    """Return the time of each step until all requests have ended."""
    found = []
    while engine.has_unfinished_requests:
        start = time.perf_counter()
        engine.step()
        found.append(time.perf_counter() - start)
    return found


def prefill_seconds(engine: LLMEngine, load: Load) -> float:
    """Return the time of a prompt's only step, the second time that it comes."""
    for _ in range(2):
        add(engine, 1, load.prompt, 1)
        (seconds,) = step_seconds(engine)
    return seconds


def decode_seconds(engine: LLMEngine, load: Load, count: int) -> float:
    """Return the median time of the last steps, in which all requests decode."""
    add(engine, count, load.context, load.num_steps + 4)
    return statistics.median(step_seconds(engine)[-load.num_steps :])


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="cuda", choices=sorted(backends.DEVICE_BACKENDS))
    parser.add_argument("--tiny", action="store_true", help="small models, few steps")
    given = parser.parse_args()
    load = TINY if given.tiny else REAL
    label = "SIMULATED, times say nothing" if given.backend in backends.SIMULATED else "device"
    print(f"{label}\n{'model':36} {'step':>16} {'ms':>9} {'tokens/s':>10} {'kernels':>8}")
    for name in load.models:
        engine = engine_of(name, given.backend, load)
        seconds = prefill_seconds(engine, load)
        shown = name.removeprefix("shape:")
        print(
            f"{shown:36} {f'prefill {load.prompt}':>16} {seconds * 1e3:9.2f} "
            f"{load.prompt / seconds:10.0f} {'':>8}"
        )
        graphs = engine.core.runner.graphs  # type: ignore[attr-defined]
        for count in load.batches:
            seconds = decode_seconds(engine, load, count)
            print(
                f"{shown:36} {f'decode {count}':>16} {seconds * 1e3:9.2f} "
                f"{count / seconds:10.0f} {len(graphs.plan_of(count)):8}"
            )


if __name__ == "__main__":
    main()
