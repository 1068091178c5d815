"""Time and memory of loading model files, against reading a file once.

    python -m benchmarks.bench_load MODEL... [--repeats 5] [--out FOLDER]

A model is a .gguf file, an alias, or shape:SHAPE:FORMAT. Each repetition is a process of its own
with the file in the page cache (``one_load``). Printed are medians, the time over that of reading
the file once, and resident memory, pages of files in it, over what it may be: 1.05 x file + KV
cache + 150 MB for interpreter and libraries. ``--out`` writes ``load-<model>.json``.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lines import Line
from benchmarks.model_records import model_file, write_model_record
from benchmarks.one_load import NEW_TOKENS, PROMPT_TOKENS
from pyvt.testing.docs_loads import LOAD, LOAD_MUST, MEMORY, MEMORY_MUST
from pyvt.testing.record import LOW, Figure

UNITS = {"file": "MB", "read": "ms", "load": "ms", "resident": "MB", "allowed": "MB"}
MUSTS = {LOAD: LOAD_MUST, MEMORY: MEMORY_MUST}


def figures(runs: Sequence[dict[str, float]]) -> Iterator[Figure]:
    """Yield the figures of the repetitions of a model; a ratio is of one repetition."""
    for name, unit in UNITS.items():
        yield Figure.of(name, unit, [run[name] for run in runs])
    yield Figure.of(LOAD, LOW, [run["load"] / run["read"] for run in runs])
    yield Figure.of(MEMORY, LOW, [run["resident"] / run["allowed"] for run in runs])


def main() -> None:
    """Measure in fresh processes, print and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    for model in args.models:
        command = [sys.executable, "-m", "benchmarks.one_load", str(model_file(model))]
        runs: list[dict[str, Any]] = []
        for _ in range(args.repeats):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        found = list(figures(runs))
        print(model)
        for figure in found:
            limit = MUSTS.get(figure.name)
            print(Line(figure.name, figure.median, figure.unit, limit=limit).text())
        if args.out is not None:
            write_model_record(
                args.out,
                "load",
                model,
                found,
                command="python -m benchmarks.bench_load",
                prompt_tokens=PROMPT_TOKENS,
                new_tokens=NEW_TOKENS,
            )


if __name__ == "__main__":
    main()
