"""Elementwise ops beyond what a case can say."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.tensor.dtype import BF16, F32

BF16_NUMPY = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("op", [ops.add, ops.mul], ids=["add", "mul"])
def test_op_of_two_may_overwrite_either_input(op: Callable[..., Any]) -> None:
    x, y = np.array([1.5, -2.0, 4.0]), np.array([3.0, 5.0, -7.0])
    want = op(x, y)

    over_x, over_y = x.copy(), y.copy()
    op(over_x, y, out=over_x)
    op(x, over_y, out=over_y)

    np.testing.assert_array_equal(over_x, want)
    np.testing.assert_array_equal(over_y, want)


def test_op_of_two_may_take_one_array_twice() -> None:
    x = np.array([1.5, -2.0])

    assert ops.add(x, x, out=x) is x
    assert ops.mul(x, x).tolist() == [9.0, 16.0]


def test_shifted_overlap_is_computed_before_it_is_written() -> None:
    x = np.arange(6.0)

    ops.scale(x[:-1], 2.0, out=x[1:])

    assert x.tolist() == [0.0, 0.0, 2.0, 4.0, 6.0, 8.0]


def test_add_of_dtypes_keeps_the_first_and_sums_wide() -> None:
    x = np.array([1.0], BF16_NUMPY)
    y = np.array([2.0**-8 + 2.0**-16], np.float32)

    assert ops.add(x, y).dtype == BF16_NUMPY
    assert float(ops.add(x, y)[0]) == 1.0 + 2.0**-7
    assert ops.add(y, x).dtype == np.float32


def test_add_of_shapes_that_could_broadcast_is_refused() -> None:
    text = "[add] y: expected shape (2, 3) as x, got (3,)"

    with pytest.raises(ShapeError, match=re.escape(text)):
        ops.add(np.zeros((2, 3)), np.zeros(3))


def test_add_of_a_list_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"\[add\] y: expected a numpy.ndarray, got list"):
        ops.add(np.zeros(2), [0.0, 0.0])  # type: ignore[arg-type]


def test_scale_of_half_dtype_overflows_to_infinity() -> None:
    x = np.array([60000.0, -60000.0, 1.0], np.float16)

    assert ops.scale(x, 2.0).tolist() == [np.inf, -np.inf, 2.0]


def test_scale_into_a_read_only_array_is_refused() -> None:
    x = np.zeros(3)
    x.flags.writeable = False

    with pytest.raises(ShapeError, match=r"\[scale\] out: expected a writeable array"):
        ops.scale(x, 2.0, out=x)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(1 + 2.0**-8, 1.0, id="tie to even, down"),
        pytest.param(1 + 3 * 2.0**-8, 1 + 2.0**-6, id="tie to even, up"),
        pytest.param(1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7, id="just above a tie"),
        pytest.param(1 + 3 * 2.0**-8 - 2.0**-40, 1 + 2.0**-7, id="just below a tie"),
        pytest.param(-(1 + 2.0**-8 + 2.0**-40), -(1 + 2.0**-7), id="negative"),
        pytest.param(2.0**-134 + 2.0**-170, 2.0**-133, id="subnormal, above a tie"),
        pytest.param(1e300, np.inf, id="overflow"),
        pytest.param(-np.inf, -np.inf, id="infinity"),
        pytest.param(1e-300, 0.0, id="underflow"),
    ],
)
def test_cast_of_f64_to_bf16_rounds_once(value: float, want: float) -> None:
    got = ops.cast(np.array([value, 0.0]), BF16)

    assert got.astype(np.float64).tolist() == [want, 0.0]


def test_cast_of_nan_stays_nan() -> None:
    for name in ("f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2"):
        assert np.isnan(ops.cast(np.array([np.nan]), name).astype(np.float64)[0])


def test_cast_to_bf16_equals_rounding_of_the_bits() -> None:
    """Every f32 with a random bit pattern, rounded to nearest even by integer arithmetic."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = np.ascontiguousarray(x[~np.isnan(x)])
    bits = x.view(np.uint32)
    want = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    np.testing.assert_array_equal(ops.cast(x, BF16).view(np.uint16), want)
    np.testing.assert_array_equal(ops.cast(x.astype(np.float64), BF16).view(np.uint16), want)


def test_cast_to_the_same_dtype_is_a_copy() -> None:
    x = np.array([1.0, 2.0], np.float32)

    got = ops.cast(x, F32)

    assert got is not x
    assert got.tobytes() == x.tobytes()


def test_cast_to_an_integer_is_refused() -> None:
    text = "[cast] dtype: expected f64|f32|f16|bf16|fp8_e4m3|fp8_e5m2, got i32"

    with pytest.raises(DTypeError, match=re.escape(text)):
        ops.cast(np.zeros(1), "i32")


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan"), float("inf")])
def test_soft_cap_of_no_positive_cap_is_refused(cap: float) -> None:
    with pytest.raises(ShapeError, match=r"\[soft_cap\] cap: expected a finite number above 0"):
        ops.soft_cap(np.zeros(1), cap)


def test_soft_cap_keeps_values_inside_and_in_order() -> None:
    x = np.linspace(-300, 300, 601)

    got = ops.soft_cap(x, 30.0)

    assert np.all(np.abs(got) <= 30.0)
    assert np.all(np.diff(got) >= 0)
