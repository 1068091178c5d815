"""Norms: what goldens cannot say."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError

WEIGHT = np.ones(4, np.float32)


def rows() -> Any:
    return np.arange(8, dtype=np.float32).reshape(2, 4)


def test_fused_norm_into_its_residual_is_refused() -> None:
    """The sum would be lost."""
    residual = rows()

    with pytest.raises(ShapeError, match="out: expected memory apart from residual"):
        ops.fused_add_rms_norm(rows(), residual, WEIGHT, 1e-6, out=residual)

    np.testing.assert_array_equal(residual, rows())


def test_fused_norm_of_one_array_twice_is_refused() -> None:
    x = rows()

    with pytest.raises(ShapeError, match="residual: expected memory apart from x"):
        ops.fused_add_rms_norm(x, x, WEIGHT, 1e-6)


@pytest.mark.parametrize("eps", [-1.0, float("nan")])
def test_norm_of_an_impossible_eps_is_refused(eps: float) -> None:
    with pytest.raises(ShapeError, match="eps: expected a finite number of at least 0"):
        ops.rms_norm(rows(), WEIGHT, eps)


def test_norm_without_eps_is_refused() -> None:
    eps: Any = None

    with pytest.raises(DTypeError, match="eps: expected a number, got None"):
        ops.rms_norm(rows(), WEIGHT, eps)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_gated_product_of_a_matrix_is_refused() -> None:
    """Its ``*`` is a product of matrices."""
    with pytest.raises(
        DTypeError, match=r"\[silu_and_mul\] x: expected a numpy.ndarray, got matrix"
    ):
        ops.silu_and_mul(np.matrix(rows()))


def test_cast_to_nothing_is_refused() -> None:
    dtype: Any = None

    with pytest.raises(DTypeError, match="expected a dtype or its name, got None"):
        ops.cast(rows(), dtype)
