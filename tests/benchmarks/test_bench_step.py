"""Where the time of a step goes, by the driver that prints it, on a tiny model."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyvt.testing import docs_loads
from pyvt.testing.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.native
def test_steps_and_a_prompt_are_told_by_part_and_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))
    words = ("shape:tiny:q8_0", "--context", "20", "--steps", "4", "--prefill", "40")

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_step", *words, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "% outside of the plan, aim under 8%" in done.stdout
    assert done.stdout.count("\npacked_linear ") == 2
    record = RunRecord.from_json((tmp_path / "step-tiny-q8_0.json").read_text())
    (figure,) = record.figures
    assert (figure.name, figure.n) == (f"{docs_loads.OUTSIDE} 20", 5)
    assert 0 < figure.median < 1
