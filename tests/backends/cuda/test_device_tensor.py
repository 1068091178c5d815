"""Views of device tensors are NumPy's views; what would copy is an error."""

import numpy as np
import pytest

from pyvt.errors import OutOfMemoryError, ShapeError
from tests.backends.cuda.under_test import IS_THERE, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

if IS_THERE:
    device_module = native()

HOST = np.arange(2 * 6 * 8, dtype=np.float32).reshape(2, 6, 8)

VIEWS = {
    "int": lambda x: x[1],
    "negative": lambda x: x[-1, -2],
    "slices": lambda x: x[:, 1:5, 2:],
    "step": lambda x: x[:, ::2, 1::3],
    "ellipsis": lambda x: x[..., 3],
    "ellipsis_in_the_middle": lambda x: x[1, ..., 2:4],
    "new_axis": lambda x: x[:, None, 2],
    "empty": lambda x: x[:, 4:4],
    "reshape": lambda x: x.reshape(-1, 4),
    "reshape_by_tuple": lambda x: x.reshape((3, 32)),
    "split_of_strided_rows": lambda x: x[:, :, 2:6].reshape(2, 6, 2, 2),
    "merge_of_rows": lambda x: x[:, :, ::2].reshape(12, 4),
    "transpose": lambda x: x.transpose(2, 0, 1),
    "slice_of_transpose": lambda x: x.transpose(1, 0, 2)[2:4, :, 1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_view_equals_numpys(view: object) -> None:
    device = device_module.upload(HOST)

    got, want = view(device), view(HOST)

    assert got.shape == want.shape
    assert (got.ndim, got.size, got.nbytes, len(got)) == (
        want.ndim, want.size, want.nbytes, len(want),
    )  # fmt: skip
    np.testing.assert_array_equal(got.numpy(), want)
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "fp8_e4m3", "i64", "i32", "i8", "u8"])
def test_array_comes_back_as_it_went(dtype: str) -> None:
    from pyvt.tensor.dtype import DTYPES

    host = np.arange(24).reshape(4, 6).astype(DTYPES[dtype].numpy)

    device = device_module.upload(host.T)

    assert device.dtype == host.dtype
    np.testing.assert_array_equal(device.numpy(), host.T)


def test_array_may_change_once_it_is_uploaded() -> None:
    host = np.ones((3, 5), np.float32)
    device = device_module.upload(host)
    host[...] = 7

    np.testing.assert_array_equal(device.numpy(), np.ones((3, 5)))


def test_filled_view_changes_the_tensor() -> None:
    device = device_module.zeros((3, 4), np.int32)
    device[1].fill_from(np.arange(4, dtype=np.int32))

    assert device.tolist() == [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: x[[0, 1]], "gather rows with an op"),
        (lambda x: x[np.array([True, False])], "gather rows with an op"),
        (lambda x: x[0, 0, 0, 0], "more axes than dims"),
        (lambda x: x[::-1], "a step above 0"),
        (lambda x: x[..., 0, ...], "one ... at most"),
        (lambda x: x[None, None, :, None, None], "6 dims at most"),
        (lambda x: x[(None,) * 400], "6 dims at most"),
        (lambda x: x.reshape(-2, -48), "sizes of at least 0"),
        (lambda x: x[:, :, ::2].reshape(2, 3, 4, 2).transpose(1, 0, 2, 3).reshape(-1), "a view"),
        (lambda x: x.reshape(5, -1), "expected the size"),
        (lambda x: x.transpose(0, 0, 1), "each dim once"),
        (lambda x: x.fill_from(np.zeros(3, np.float32)), "expected a dense tensor"),
    ],
)
def test_what_is_no_view_is_an_error(make: object, text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        make(device_module.upload(HOST))


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 62,), (3, 1 << 61)])
def test_size_beyond_64_bits_is_memory_that_no_device_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"expected .* MiB"):
        device_module.empty(shape, np.float32)

    assert device_module.empty((0, *shape), np.float32).size == 0
