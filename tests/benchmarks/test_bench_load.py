"""The memory of a loaded model, by the driver that prints it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_load
from pyvt.testing import docs_loads

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.native
def test_resident_memory_is_the_file_the_cache_and_a_fixed_part(smollm2_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_load", str(smollm2_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["file"] < figures["resident"] <= figures["allowed"]


def test_ratios_are_of_one_repetition() -> None:
    run = {"file": 98.0, "read": 20.0, "load": 50.0, "resident": 240.0, "allowed": 250.0}

    found = {f.name: f.median for f in bench_load.figures([run, run | {"read": 25.0}])}

    assert found[docs_loads.LOAD] == pytest.approx(2.25)
    assert found[docs_loads.MEMORY] == pytest.approx(0.96)
