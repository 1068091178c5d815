"""Activations beyond what a case can say."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError

MAPS = [ops.relu, ops.sigmoid, ops.silu, ops.gelu]
GATED = [ops.silu_and_mul, ops.gelu_and_mul]


def name(op: Callable[..., Any]) -> str:
    return op.__name__


@pytest.mark.parametrize("op", MAPS, ids=name)
def test_activation_may_overwrite_its_input(op: Callable[..., Any]) -> None:
    x = np.linspace(-3, 3, 13)
    want = op(x)

    assert op(x, out=x) is x
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("half", [slice(0, 5), slice(5, 10)], ids=["gate", "up"])
@pytest.mark.parametrize("op", GATED, ids=name)
def test_gated_product_may_overwrite_a_half(op: Callable[..., Any], half: slice) -> None:
    x = np.random.default_rng(0).standard_normal((3, 10))
    want = op(x)

    op(x, out=x[:, half])

    np.testing.assert_array_equal(x[:, half], want)


@pytest.mark.parametrize("op", MAPS, ids=name)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_activation_of_large_values_is_finite_and_silent(
    op: Callable[..., Any], dtype: type
) -> None:
    largest = np.finfo(dtype).max

    got = op(np.array([-largest, -100.0, 100.0, largest], dtype))

    assert np.all(np.isfinite(got))
    assert got[2] in (1.0, 100.0)


@pytest.mark.parametrize("op", MAPS, ids=name)
def test_activation_of_nan_is_nan(op: Callable[..., Any]) -> None:
    assert np.isnan(op(np.array([np.nan], np.float32))[0])


def test_silu_and_mul_takes_the_gate_from_the_first_half() -> None:
    x = np.array([[0.0, 100.0, 3.0, 7.0]])

    assert ops.silu_and_mul(x).tolist() == [[0.0, 700.0]]


@pytest.mark.parametrize("op", GATED, ids=name)
def test_gated_product_of_an_odd_dim_is_refused(op: Callable[..., Any]) -> None:
    text = f"[{op.__name__}] x: expected an even last dim, gate and up, got (2, 5)"

    with pytest.raises(ShapeError, match=re.escape(text)):
        op(np.zeros((2, 5)))


@pytest.mark.parametrize("op", GATED, ids=name)
def test_gated_product_of_a_scalar_is_refused(op: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError, match=re.escape("expected dims [... _], got shape ()")):
        op(np.zeros(()))


@pytest.mark.parametrize("op", [*MAPS, *GATED], ids=name)
def test_activation_of_integers_is_refused(op: Callable[..., Any]) -> None:
    text = f"[{op.__name__}] x: expected f64|f32|f16|bf16, got int32"

    with pytest.raises(DTypeError, match=re.escape(text)):
        op(np.zeros(2, np.int32))


def test_gated_product_into_a_wrong_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=re.escape("out: expected shape (2, 3), got (2, 6)")):
        ops.silu_and_mul(np.zeros((2, 6)), out=np.zeros((2, 6)))
