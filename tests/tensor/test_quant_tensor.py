"""QuantTensor: what it accepts, its sizes, its row views."""

import numpy as np
import pytest

from pyvt.errors import DTypeError, ShapeError
from pyvt.tensor.dtype import F32, Q4_K, Q8_0, DType
from pyvt.tensor.quant_tensor import QuantTensor


def make_weight() -> QuantTensor:
    blocks = np.arange(6 * 68, dtype=np.uint32).astype(np.uint8).reshape(6, 68)
    return QuantTensor(Q8_0, (6, 64), blocks)


def test_quant_tensor_sizes() -> None:
    weight = QuantTensor(Q4_K, (2, 3, 512), np.zeros((2, 3, 288), np.uint8))

    assert (weight.ndim, weight.size, weight.num_blocks) == (3, 3072, 12)
    assert weight.nbytes == 1728


@pytest.mark.parametrize(
    ("dtype", "shape", "blocks", "error", "text"),
    [
        pytest.param(F32, (32,), np.zeros(34, np.uint8), DTypeError, "block format", id="plain"),
        pytest.param(Q8_0, (), np.zeros((), np.uint8), ShapeError, "a block or more", id="no_dim"),
        pytest.param(Q8_0, (2, 0), np.zeros((2, 0), np.uint8), ShapeError, "a block", id="empty"),
        pytest.param(Q8_0, (33,), np.zeros(34, np.uint8), DTypeError, "multiple", id="part"),
        pytest.param(Q8_0, (2, 32), np.zeros(68, np.uint8), ShapeError, r"\(2, 34\)", id="flat"),
        pytest.param(Q8_0, (32,), np.zeros(34, np.int8), ShapeError, "got int8", id="signed"),
        pytest.param(Q8_0, (32,), np.zeros(33, np.uint8), ShapeError, r"\(33,\)", id="short"),
    ],
)  # fmt: skip
def test_quant_tensor_bad_argument_is_refused(
    dtype: DType, shape: tuple[int, ...], blocks: np.ndarray, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        QuantTensor(dtype, shape, blocks)


def test_rows_slice_is_a_view() -> None:
    weight = make_weight()

    rows = weight.rows(slice(2, 5))

    assert rows.shape == (3, 64)
    assert np.shares_memory(rows.blocks, weight.blocks)


def test_rows_index_gathers_in_order() -> None:
    weight = make_weight()

    rows = weight.rows(np.array([5, 0, 5]))

    assert rows.shape == (3, 64)
    np.testing.assert_array_equal(rows.blocks, weight.blocks[[5, 0, 5]])


def test_quant_tensor_has_no_arithmetic() -> None:
    with pytest.raises(TypeError):
        make_weight() + 1
