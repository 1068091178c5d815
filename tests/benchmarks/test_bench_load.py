"""The memory of a loaded model, by the driver that prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.native
def test_resident_memory_is_the_file_the_cache_and_a_fixed_part(smollm2_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_load", "--one", str(smollm2_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["file_mb"] < figures["resident_mb"] <= figures["allowed_mb"]
