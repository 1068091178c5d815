"""What the header of a file with kernels must say: see "Add a kernel" in docs/cuda.md."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "csrc/cuda"
FILES = [path for path in sorted(FOLDER.glob("*.cu")) if "__global__" in path.read_text()]
PARTS = ("contract", "layout", "work", "estimate", "launches")


def parts_of(path: Path) -> dict[str, str]:
    """Return the parts of a header by their names."""
    lines = [line[3:] for line in path.read_text().split("\n#include")[0].splitlines()]
    found: dict[str, str] = {}
    name = "what"
    for line in lines:
        word, _, rest = line.partition(" ")
        if word and word.isalpha() and line[len(word) : 10].isspace():
            name, line = word, rest
        found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return found


def test_all_kernels_are_here() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_header_has_the_estimate_of_its_kernels(path: Path) -> None:
    parts = parts_of(path)

    assert [name for name in PARTS if name not in parts] == []
    estimate = parts["estimate"]
    assert re.search(r"\d[\d,]* ?(us|ns|ms|TB/s|TFLOP)", estimate), "a time or a ceiling"
    assert re.search(r"bytes|\d ?[kMGT]B", estimate), "what is moved"
    assert re.search(r"operation|FLOP|mma", estimate), "what is computed"
    assert re.search(r"\d", parts["launches"]), "the number of launches"
