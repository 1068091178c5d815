"""MappedFile: what happens to its pages."""

import re
from pathlib import Path

import numpy as np
import pytest

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import F32
from pyvt.weights.mapped_file import MappedFile

SIZE = 8 << 20


def _resident_kib(address: int) -> int:
    """Return the resident part of the mapping that holds an address, in KiB."""
    text = Path("/proc/self/smaps").read_text()
    for entry in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        start, stop = (int(end, 16) for end in entry.split(maxsplit=1)[0].split("-"))
        if start <= address < stop:
            return int(re.findall(r"^Rss:\s+(\d+) kB", entry, re.M)[0])
    raise AssertionError("no mapping holds the address")


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFile:
    """A file of 8 MiB, mapped."""
    path = tmp_path / "weights"
    np.arange(SIZE // 4, dtype=np.float32).tofile(path)
    return MappedFile(path)


def test_release_takes_pages_out_and_a_view_reads_them_again(mapped: MappedFile) -> None:
    view = mapped.tensor("w", F32, (SIZE // 4,), 0)
    assert isinstance(view, np.ndarray)
    total = float(view.sum(dtype=np.float64))
    before = _resident_kib(view.ctypes.data)

    mapped.release()

    after = _resident_kib(view.ctypes.data)
    assert before == SIZE // 1024
    assert after < 512
    assert float(view.sum(dtype=np.float64)) == total


def test_release_of_an_empty_file_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()

    MappedFile(path).release()


def test_view_outlives_close_and_release_after_it_is_nothing(mapped: MappedFile) -> None:
    view = mapped.tensor("w", F32, (4,), 8)

    mapped.close()
    mapped.release()

    assert isinstance(view, np.ndarray)
    assert view.tolist() == [2, 3, 4, 5]
    with pytest.raises(CheckpointError, match="expected an open file"):
        mapped.tensor("w", F32, (4,), 8)
