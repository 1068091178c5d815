"""Linear beyond what a case can say: memory, aliasing, errors."""

import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError

BF16 = ml_dtypes.bfloat16


def peak_of(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> int:
    """Return the most bytes that one call held at a time."""
    ops.linear(x, weight, out=out)
    tracemalloc.start()
    ops.linear(x, weight, out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_linear_with_an_f32_weight_copies_nothing() -> None:
    x, out = np.ones((1, 512), np.float32), np.empty((1, 4096), np.float32)

    assert peak_of(x, np.ones((4096, 512), np.float32), out) < 64 << 10


@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_linear_with_a_half_weight_widens_a_bounded_tile(dtype: type) -> None:
    """A weight of 16 MiB in f32 is widened by tiles of 4 MiB."""
    x, out = np.ones((1, 512), np.float32), np.empty((1, 8192), np.float32)

    assert peak_of(x, np.ones((8192, 512), dtype), out) < 9 << 20
    np.testing.assert_array_equal(out, 512)


def test_linear_of_a_row_longer_than_a_tile() -> None:
    x = np.ones((1, (1 << 20) + 3), np.float32)

    assert ops.linear(x, np.ones((2, x.shape[1]), BF16)).tolist() == [[x.shape[1]] * 2]


def test_linear_sums_wide_and_rounds_once() -> None:
    """The sum of 300 ones in bf16 would stop at 256."""
    x, weight = np.ones((1, 300), BF16), np.ones((1, 300), BF16)

    assert float(ops.linear(x, weight)[0, 0]) == 300.0
    assert float(ops.linear(x, weight, np.array([212.0], BF16))[0, 0]) == 512.0


def test_linear_of_f64_weight_keeps_the_dtype_of_x() -> None:
    x = np.array([[2.0**12, 1.0]], np.float32)
    weight = np.array([[2.0**12, 1.0], [-(2.0**12), 2.0**24 + 1]])

    out = ops.linear(x, weight, np.array([-(2.0**24), 0.0]))

    assert out.dtype == np.float32
    assert out.tolist() == [[1.0, 1.0]]


def test_linear_of_half_overflows_to_infinity() -> None:
    x, weight = np.full((1, 4), 200.0, np.float16), np.full((1, 4), 200.0, np.float16)

    assert ops.linear(x, weight).tolist() == [[np.inf]]


def test_linear_of_infinities_is_nan() -> None:
    x = np.array([[np.inf, np.inf]], np.float32)

    assert np.isnan(ops.linear(x, np.array([[1.0, -1.0]], np.float32))[0, 0])


def test_linear_row_of_nan_leaves_other_rows_alone() -> None:
    x = np.ones((3, 40), np.float32)
    x[1] = np.nan

    out = ops.linear(x, np.ones((5, 40), np.float32))

    assert np.isnan(out[1]).all()
    np.testing.assert_array_equal(out[[0, 2]], 40)


def test_linear_into_its_own_input_is_refused() -> None:
    x = np.ones((2, 3), np.float32)

    with pytest.raises(ShapeError, match=re.escape("[linear] out: expected memory apart from x")):
        ops.linear(x, np.ones((3, 3), np.float32), out=x)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "text"),
    [
        ((2, 3), (4, 5), None, "[linear] weight: expected K=3, got 5"),
        ((2, 3), (3,), None, "[linear] weight: expected dims [N K], got shape (3,)"),
        ((2, 3), (4, 3), (3,), "[linear] bias: expected N=4, got 3"),
        ((), (4, 3), None, "[linear] x: expected dims [... K], got shape ()"),
    ],
)
def test_linear_of_wrong_shapes_is_refused(
    x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None, text: str
) -> None:
    of_bias = None if bias is None else np.zeros(bias)

    with pytest.raises(ShapeError, match=re.escape(text)):
        ops.linear(np.zeros(x), np.zeros(weight), of_bias)


def test_linear_of_integers_is_refused() -> None:
    with pytest.raises(DTypeError, match=re.escape("[linear] weight: expected f64|f32|f16|bf16")):
        ops.linear(np.zeros((1, 2)), np.zeros((3, 2), np.int8))


def test_linear_into_its_bias_is_refused() -> None:
    bias = np.arange(3, dtype=np.float32)
    x, weight = np.ones((1, 2), np.float32), np.ones((3, 2), np.float32)

    with pytest.raises(ShapeError, match="out: expected memory apart from bias"):
        ops.linear(x, weight, bias, out=bias.reshape(1, 3))
