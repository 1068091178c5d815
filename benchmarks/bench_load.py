"""Time and memory of loading a model file, against reading the file once.

    python -m benchmarks.bench_load MODEL.gguf [--repeats 5]

Each repetition is a process of its own with the file in the page cache: it reads the file into
fresh memory and gives that back, then builds an engine, then answers a short prompt. Printed:
medians of both times and their ratio, and resident memory beside what it may be: 1.05 x file + KV
cache + 150 MB for interpreter and libraries.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OVERHEAD_BYTES = 150 * 10**6
FILE_SHARE = 1.05


def resident_bytes() -> int:
    """Return the resident memory of this process without pages of files, which can be dropped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024


def measure(model: str) -> dict[str, float]:
    """Return the figures of one load in this process."""
    Path(model).read_bytes()
    start = time.perf_counter()
    size = len(Path(model).read_bytes())
    read_s = time.perf_counter() - start

    from pyvt.config import engine_config
    from pyvt.engine.build import build_engine
    from pyvt.llm import LLM
    from pyvt.sampling_params import SamplingParams
    from pyvt.worker.model_runner import ModelRunner

    start = time.perf_counter()
    engine = build_engine(engine_config(model, max_model_len=1024, num_blocks=64))
    load_s = time.perf_counter() - start
    runner = engine.core.runner
    assert isinstance(runner, ModelRunner), "the engine runs a model"
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    LLM.from_engine(engine).generate([list(range(100, 228))], params)
    allowed = FILE_SHARE * size + runner.kv_cache.nbytes + OVERHEAD_BYTES
    return {
        "read_ms": read_s * 1000,
        "load_ms": load_s * 1000,
        "resident_mb": resident_bytes() / 1e6,
        "allowed_mb": allowed / 1e6,
        "file_mb": size / 1e6,
    }


def main() -> None:
    """Measure in fresh processes and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="measure in this process, print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.model)))
        return
    command = [sys.executable, "-m", "benchmarks.bench_load", "--one", args.model]
    runs: list[dict[str, Any]] = []
    for _ in range(args.repeats):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    ratio = statistics.median(run["load_ms"] / run["read_ms"] for run in runs)
    print(f"file {median['file_mb']:.0f} MB, read once {median['read_ms']:.0f} ms")
    print(f"load {median['load_ms']:.0f} ms, {ratio:.1f} x read")
    share = median["resident_mb"] / median["allowed_mb"]
    print(f"resident {median['resident_mb']:.0f} of {median['allowed_mb']:.0f} MB, {share:.0%}")


if __name__ == "__main__":
    main()
