"""Each barrier of the kernels is needed: without it, calls of these tests give something else."""

import subprocess
import sys

import pytest

from tests.backends.cuda.barriers import CALLS, barriers

pytestmark = [pytest.mark.emulated]


def test_every_file_with_barriers_has_calls() -> None:
    assert {file for file, _ in barriers()} == set(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("file", CALLS)
def test_missing_barriers_are_seen(file: str) -> None:
    command = [sys.executable, "-m", "tests.backends.cuda.barriers", file]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    assert done.returncode == 0, done.stdout
