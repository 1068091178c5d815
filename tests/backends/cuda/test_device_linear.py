"""Products with plain weights: who computes them, in how many launches, rounded how often."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

BF16 = ml_dtypes.bfloat16
ROWS, COLUMNS, INPUTS = 24, 40, 64  # more rows than the kernels of a decode step take


def run(x: Any, weight: Any, bias: Any = None) -> tuple[Any, int]:
    """The product and its launches; arguments are arrays, or views made on the device."""
    use_backend(NAME)
    before = native().num_launches()
    out = ops.linear(x, weight, bias)
    launches = native().num_launches() - before
    return np.asarray(out.numpy(), np.float32), launches


def whole_numbers(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(BF16)


@pytest.fixture(autouse=True)
def device() -> None:
    """The backend of the device, selected."""
    use_backend(NAME)


@pytest.mark.parametrize("is_by_cublas", [True, False])
def test_bias_is_added_before_the_one_rounding(is_by_cublas: bool) -> None:
    """257 + 1 is 258 in bf16; 257 alone is 256, and 256 + 1 is 256 again."""
    x = np.zeros((ROWS, INPUTS), BF16)
    x[:, 0], x[:, 1] = 256, 1
    weight, bias = np.zeros((COLUMNS, INPUTS), BF16), np.ones(COLUMNS, BF16)
    weight[:, :2] = 1
    native().use_cublas(is_by_cublas)

    try:
        got, launches = run(*map(native().upload, (x, weight, bias)))
    finally:
        native().use_cublas(True)

    assert set(got.ravel()) == {258}
    assert launches == 1


@pytest.mark.parametrize("is_by_cublas", [True, False])
def test_parts_of_a_sum_are_not_rounded(is_by_cublas: bool) -> None:
    """256 + 1 + 1 is 258 in bf16; the first two alone are 256, and 256 + 1 is 256 again."""
    x = np.zeros((ROWS, INPUTS), BF16)
    x[:, 0], x[:, 1], x[:, -1] = 256, 1, 1
    native().use_cublas(is_by_cublas)

    try:
        got, _ = run(*map(native().upload, (x, np.ones((COLUMNS, INPUTS), BF16))))
    finally:
        native().use_cublas(True)

    assert set(got.ravel()) == {258}


def test_bias_of_another_dtype_is_one_launch_more() -> None:
    x, weight = whole_numbers(ROWS, INPUTS), whole_numbers(COLUMNS, INPUTS, seed=2)
    bias = np.arange(COLUMNS, dtype=np.float32)

    got, launches = run(*map(native().upload, (x, weight, bias)))

    want = x.astype(np.float32) @ weight.astype(np.float32).T
    np.testing.assert_array_equal(got, (want + bias).astype(BF16).astype(np.float32))
    assert launches == 2


@pytest.mark.parametrize(
    ("x_start", "weight_start", "padding"),
    [(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 1), (2, 8, 8), (1, 3, 5)],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_may_begin_anywhere(
    x_start: int, weight_start: int, padding: int, has_bias: bool
) -> None:
    """Rows at odd places, which a library may have no way for, are computed all the same."""
    x = whole_numbers(ROWS, INPUTS + x_start + padding)
    weight = whole_numbers(COLUMNS, INPUTS + weight_start + padding, seed=2)
    bias = whole_numbers(COLUMNS + 1, seed=3) if has_bias else None
    x_part = slice(x_start, x_start + INPUTS)
    weight_part = slice(weight_start, weight_start + INPUTS)

    got, _ = run(
        native().upload(x)[:, x_part],
        native().upload(weight)[:, weight_part],
        None if bias is None else native().upload(bias)[1:],
    )

    want = x[:, x_part].astype(np.float32) @ weight[:, weight_part].astype(np.float32).T
    if bias is not None:
        want += bias[1:].astype(np.float32)
    np.testing.assert_array_equal(got, want.astype(BF16).astype(np.float32))


@pytest.mark.skipif(NAME != "cuda-emu", reason="NumPy shares memory with the emulator alone")
@pytest.mark.parametrize("distance", [0, 1, INPUTS // 2])
def test_rows_may_share_elements(distance: int) -> None:
    """A row again and again, or rows that overlap: no matrix to a library."""
    line = whole_numbers(ROWS * distance + INPUTS)
    strides = (distance * line.itemsize, line.itemsize)
    x = np.lib.stride_tricks.as_strided(line.view(np.float16), (ROWS, INPUTS), strides)
    weight = whole_numbers(COLUMNS, INPUTS, seed=2)

    got, _ = run(native().from_dlpack(x).view(BF16), native().upload(weight))

    want = x.view(BF16).astype(np.float32) @ weight.astype(np.float32).T
    np.testing.assert_array_equal(got, want.astype(BF16).astype(np.float32))


def test_bias_may_have_gaps() -> None:
    x, weight = whole_numbers(ROWS, INPUTS), whole_numbers(COLUMNS, INPUTS, seed=2)
    bias = whole_numbers(2 * COLUMNS, seed=3)

    got, _ = run(native().upload(x), native().upload(weight), native().upload(bias)[::2])

    want = x.astype(np.float32) @ weight.astype(np.float32).T + bias[::2].astype(np.float32)
    np.testing.assert_array_equal(got, want.astype(BF16).astype(np.float32))


def test_columns_between_those_of_the_result_stay() -> None:
    out = native().upload(np.full((ROWS, COLUMNS + 8), 7, BF16))
    x, weight = whole_numbers(ROWS, INPUTS), whole_numbers(COLUMNS, INPUTS, seed=2)

    ops.linear(native().upload(x), native().upload(weight), out=out[:, :COLUMNS])

    got = np.asarray(out.numpy(), np.float32)
    want = x.astype(np.float32) @ weight.astype(np.float32).T
    np.testing.assert_array_equal(got[:, :COLUMNS], want.astype(BF16).astype(np.float32))
    assert set(got[:, COLUMNS:].ravel()) == {7}
