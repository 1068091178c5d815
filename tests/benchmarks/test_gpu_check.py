"""The script for a machine with a card: every test of a device is in one of its steps."""

import re
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "benchmarks/gpu_check.sh"
TESTS = "tests/backends/cuda"


def test_script_is_one_that_bash_reads() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_files_that_have_a_step_of_their_own_are_there() -> None:
    names = re.findall(r"\$tests/(\w+\.py)", SCRIPT.read_text())

    assert len(names) >= 6
    assert [name for name in names if not (REPO / TESTS / name).exists()] == []


def test_whatever_else_the_folder_has_runs_too() -> None:
    """By the folder and the marker, without the files that other steps run."""
    text = SCRIPT.read_text()

    assert f"tests={TESTS}\n" in text
    assert 'listed=("${ops[@]}" "${models[@]}" "${graphs[@]}")' in text
    assert 'others=($tests -m "$marker" "${listed[@]/#/--ignore=}")' in text
    assert 'step others 60 "${pytest[@]}" "${others[@]}"' in text
