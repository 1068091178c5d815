"""One loaded engine under measurement: prefill, decode and batched decode, in seconds a step.

``python -m pyvt.testing.bench_engine FILE`` is a peer of ``pyvt bench peers``: it reads one JSON
object a line from stdin and answers each with one on stdout. The protocol, which the scripts
``benchmarks/peer_*.py`` speak too:

1. On start: ``{"name": …, "load_s": …}``.
2. ``{"do": "prefill", "tokens": n}``: ``{"seconds": [s]}`` for a prompt of n tokens.
3. ``{"do": "decode", "context": c, "steps": n}``: the seconds of n steps after c tokens, and those
   of the prompt as ``prefill_s``.
4. ``{"do": "batch", "sequences": b, "context": c, "steps": n}``: the seconds of n steps of b
   sequences after c tokens each.
5. ``{"do": "memory"}``: ``{"resident_bytes": …, "peak_bytes": …}`` of the process.
6. A peer may know more; end of input ends it.
"""

import argparse
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyvt import __version__, dispatch, envs
from pyvt.config import engine_config
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.engine.build import build_engine
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.testing.bench_limits import measure_limits
from pyvt.worker.model_runner import ModelRunner

# Room for the longest measured prompt and its answer; all sequences share a pool of 2,048 tokens,
# as the peers do.
MAX_MODEL_LEN = 1024
MAX_BATCH = 16
BLOCK_SIZE, NUM_BLOCKS = 16, 128


class EngineBench:
    """An engine and what is measured on it; prompts are random tokens, sampling is greedy."""

    def __init__(self, path: str | Path, **settings: Any) -> None:
        """``settings`` are those of ``engine_config``."""
        chosen = {
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": MAX_BATCH,
            "block_size": BLOCK_SIZE,
            "num_blocks": NUM_BLOCKS,
            **settings,
        }
        self.engine = build_engine(engine_config(str(path), **chosen))
        self._rng = random.Random(0)  # numpy.random would count as memory of the engine
        self._ids = itertools.count()

    def touch_cache(self) -> None:
        """Write every block once, as peers do when they allocate theirs.

        Else the first prompts pay for the pages that the system gives, 2 to 7 % of their time.
        """
        runner = self.engine.core.runner
        assert isinstance(runner, ModelRunner), "a model has loaded"
        for array in runner.kv_cache.tensors().values():
            array[...] = 0

    def prefill(self, num_tokens: int) -> list[float]:
        """Return the seconds of a prompt of that many tokens, up to its first new token."""
        self._add(1, num_tokens, 1)
        clock = self.engine.core.clock
        start = clock()
        self._drain()
        return [clock() - start]

    def decode(
        self, context: int, num_steps: int, num_sequences: int = 1
    ) -> tuple[float, list[float]]:
        """Return the seconds of the prompts, then of each step with a token of every sequence."""
        self._add(num_sequences, context, num_steps + 1)
        core = self.engine.core
        prompts_start = core.clock()
        first = core.stats.num_generation_tokens + num_sequences
        while core.stats.num_generation_tokens < first:
            self.engine.step()
        prefill_s = core.clock() - prompts_start
        seconds = []
        while self.engine.has_unfinished_requests:
            start = core.clock()
            self.engine.step()
            seconds.append(core.clock() - start)
        return prefill_s, seconds

    def first_token(self, prompt: list[int], num_new_tokens: int) -> tuple[float, list[int]]:
        """Return the seconds up to a prompt's first new token, and all its new tokens."""
        params = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
        core = self.engine.core
        start, first = core.clock(), core.stats.num_generation_tokens
        self.engine.add_request(f"bench-{next(self._ids)}", prompt, params)
        outputs: list[RequestOutput] = []
        while core.stats.num_generation_tokens == first:
            outputs = self.engine.step()
        seconds = core.clock() - start
        while self.engine.has_unfinished_requests:
            outputs = self.engine.step()
        return seconds, list(outputs[-1].outputs[0].token_ids)

    def random_ids(self, count: int) -> list[int]:
        """Return random token ids of the model."""
        size = self.engine.input_processor.limits.vocab_size
        return self._rng.choices(range(size), k=count)

    def _add(self, count: int, num_prompt_tokens: int, num_new_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
        for _ in range(count):
            ids = self.random_ids(num_prompt_tokens)
            self.engine.add_request(f"bench-{next(self._ids)}", ids, params)

    def _drain(self) -> None:
        while self.engine.has_unfinished_requests:
            self.engine.step()


def memory_use() -> dict[str, int]:
    """Return the resident and the peak bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    sizes = {k: int(fields[k].split()[0]) * 1024 for k in ("VmRSS", "VmHWM")}
    return {"resident_bytes": sizes["VmRSS"], "peak_bytes": sizes["VmHWM"]}


def kernels_that_ran() -> dict[str, str]:
    """Return the backends that served each op of the measured steps."""
    return {name: " ".join(served) for name, served in dispatch.chosen_backends().items()}


def _answers(bench: EngineBench) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    return {
        "prefill": lambda ask: {"seconds": bench.prefill(ask["tokens"])},
        "decode": lambda ask: _timed(bench.decode(ask["context"], ask["steps"])),
        "batch": lambda ask: _timed(bench.decode(ask["context"], ask["steps"], ask["sequences"])),
        "memory": lambda ask: memory_use(),
        "limits": lambda ask: asdict(limits) if (limits := measure_limits(2)) else {},
        "kernels": lambda ask: {"kernels": kernels_that_ran()},
    }


def _timed(measured: tuple[float, list[float]]) -> dict[str, Any]:
    return {"prefill_s": measured[0], "seconds": measured[1]}


def main() -> None:
    """Load the file and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--settings", type=json.loads, default={})
    args = parser.parse_args()
    settings = args.settings | ({"threads": args.threads} if args.threads else {})
    bench = EngineBench(args.path, **settings)
    bench.touch_cache()
    device = bench.engine.config.device
    name = f"pyvt {__version__} {device.backend} act={device.act}"
    _say({"name": name, "load_s": bench.engine.model_load_ms / 1000, "dtype": device.dtype})
    if device.backend != REFERENCE_BACKEND:
        # What is measured is the backend: from here on a call of the reference is an error.
        os.environ[envs.PYVT_STRICT.name] = "1"
        dispatch.use_backend(device.backend)
    answers = _answers(bench)
    for line in sys.stdin:
        ask = json.loads(line)
        _say(answers[ask["do"]](ask))


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
