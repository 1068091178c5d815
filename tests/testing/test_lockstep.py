"""Lockstep: a backend equal to the reference passes, one with a wrong kernel is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyvt import backends
from pyvt.dispatch import Candidate, get_op
from pyvt.dispatch.table import register
from pyvt.testing.lockstep import run_lockstep
from pyvt.testing.shape_models import ShapeModel, write_shape_gguf

PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("lockstep") / "tiny.gguf"
    write_shape_gguf(file, ShapeModel.named("shape:tiny:q4_1"))
    return file


@pytest.fixture
def bent_norm() -> Iterator[None]:
    """A backend ``bent`` whose only kernel is off by a thousandth."""
    op = get_op("fused_add_rms_norm")
    reference = op.of_backend("numpy")
    assert reference is not None

    def kernel(out: Any, *rest: Any) -> None:
        reference.kernel(out, *rest)
        out *= 1.001

    candidate = Candidate("bent", "host", kernel, 1)
    register("fused_add_rms_norm", candidate)
    yield
    op.candidates.remove(candidate)


@pytest.mark.native
def test_native_backend_is_in_lockstep(path: Path) -> None:
    backends.load("cpu")
    lines: list[str] = []

    result = run_lockstep(path, PROMPTS, "cpu", print=lines.append)

    assert result.is_good, lines
    assert len(lines) == 2
    assert "none out of bounds" in lines[0]
    assert "own input moves by one bit" in lines[1]


@pytest.mark.usefixtures("bent_norm")
def test_wrong_kernel_is_named(path: Path) -> None:
    lines: list[str] = []

    result = run_lockstep(path, PROMPTS, "bent", print=lines.append)

    assert not result.is_good
    place = "model.layers.0.post_attention_layernorm fused_add_rms_norm"
    assert all(f"first at {place}" in line for line in lines)
