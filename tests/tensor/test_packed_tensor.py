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


def test_packed_tensor_has_no_arithmetic() -> None:
    packed: Any = PackedTensor(Q4_1, (17, 32), TILE16, BYTES)

    with pytest.raises(TypeError):
        packed + packed


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((Q4_1, (17, 32), "tile8", BYTES), DTypeError, "layout: expected tile16, got 'tile8'"),
        ((Q4_1, (2, 17, 32), TILE16, BYTES), ShapeError, "shape: expected (N, K)"),
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
