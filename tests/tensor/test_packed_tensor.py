"""PackedTensor: what it refuses, and its sizes."""

from typing import Any

import numpy as np
import pytest

from pyvt.errors import DTypeError, PyvtError, ShapeError
from pyvt.tensor.dtype import BF16, F32, Q4_1
from pyvt.tensor.packed_tensor import TILE16, PackedTensor

BYTES = np.zeros(2 * 16 * 20, np.uint8)


def test_sizes_of_a_packed_tensor() -> None:
    packed = PackedTensor(Q4_1, (17, 32), TILE16, BYTES)

    assert (packed.ndim, packed.num_tiles, packed.nbytes) == (2, 2, 640)


def test_packed_tensor_without_rows_has_no_tiles() -> None:
    assert PackedTensor(F32, (0, 8), TILE16, BYTES[:0]).num_tiles == 0


def test_matrices_of_a_stack_have_tiles_of_their_own() -> None:
    data = np.arange(4 * 16 * 20, dtype=np.uint16).astype(np.uint8)
    stack = PackedTensor(Q4_1, (2, 17, 32), TILE16, data)

    last = stack.matrix(1)

    assert (stack.ndim, stack.num_tiles) == (3, 4)
    assert (last.shape, last.num_tiles) == ((17, 32), 2)
    assert last.data.tobytes() == data[640:].tobytes()
    assert np.shares_memory(last.data, data)


def test_packed_tensor_has_no_arithmetic() -> None:
    packed: Any = PackedTensor(Q4_1, (17, 32), TILE16, BYTES)

    with pytest.raises(TypeError):
        packed + packed


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((Q4_1, (17, 32), "tile8", BYTES), DTypeError, "layout: expected tile16, got 'tile8'"),
        ((Q4_1, (32,), TILE16, BYTES), ShapeError, "shape: expected (N, K) or (E, N, K)"),
        ((Q4_1, (1, 2, 17, 32), TILE16, BYTES), ShapeError, "shape: expected (N, K)"),
        ((Q4_1, (2, 17, 32), TILE16, BYTES), ShapeError, "4 tiles of at least 1280 bytes"),
        ((Q4_1, (17, 32), TILE16, BYTES.view(np.int8)), ShapeError, "data: expected contiguous"),
        ((Q4_1, (17, 32), TILE16, BYTES.reshape(2, -1)), ShapeError, "data: expected contiguous"),
        ((Q4_1, (17, 32), TILE16, BYTES[::2]), ShapeError, "data: expected contiguous"),
        ((Q4_1, (33, 32), TILE16, BYTES), ShapeError, "3 tiles of at least 960 bytes"),
        ((BF16, (17, 8), TILE16, BYTES[:-1]), ShapeError, "2 tiles"),
    ],
)
def test_packed_tensor_bad_argument_is_refused(
    arguments: tuple[Any, ...], error: type[PyvtError], text: str
) -> None:
    with pytest.raises(error, match=r"^\[PackedTensor\] ") as caught:
        PackedTensor(*arguments)

    assert text in str(caught.value)
