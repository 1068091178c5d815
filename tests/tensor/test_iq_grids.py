"""The grids of the IQ2 and IQ3 formats against the gguf package."""

import hashlib
from pathlib import Path

import gguf.quants
import numpy as np
import pytest

from parity.dump_iq_grids import NAMES, header, literal
from pyvt.tensor.iq_grids import iq_grid

SHA256_OF_UINT8 = {
    "iq2_xxs": "05826b5d3e472a3a",
    "iq2_xs": "06e47aaca60b4dc1",
    "iq2_s": "e1aa1473412b0552",
    "iq3_xxs": "46e35f5a997efdee",
    "iq3_s": "bd1af4945a1717c6",
}


@pytest.mark.parametrize("name", NAMES)
def test_grid_equals_the_package(name: str) -> None:
    theirs = getattr(gguf.quants, name.upper())
    theirs.init_grid()

    np.testing.assert_array_equal(iq_grid(name), theirs.grid[0, 0])


@pytest.mark.parametrize("name", NAMES)
def test_grid_has_its_sum(name: str) -> None:
    digest = hashlib.sha256(iq_grid(name).view(np.uint8).tobytes()).hexdigest()

    assert digest.startswith(SHA256_OF_UINT8[name])


def test_grid_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        iq_grid("iq3_s")[0, 0] = 1


def test_source_holds_what_the_script_writes(repo: Path) -> None:
    assert literal() in (repo / "pyvt/tensor/iq_grids.py").read_text()
    assert header() == (repo / "csrc/cpu/iq_grid_codes.h").read_text()
