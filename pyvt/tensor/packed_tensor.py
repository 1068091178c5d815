"""PackedTensor: a weight matrix, or a stack of them, laid out once for the kernels of a backend.

Dims: E matrices of a stack, N rows (outputs), K elements of a row (inputs).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.errors import DTypeError, ShapeError
from pyvt.mathutil import cdiv
from pyvt.tensor.dtype import DType

TILE16 = "tile16"
TILE_ROWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """Tiles of 16 rows, the last one of a matrix filled up with rows of zero bytes.

    There are no arithmetic operators: every computation has a name in ``pyvt.ops``, where
    ``packed_layouts`` says what the bytes of a tile mean.

    Attributes:
        dtype: the dtype of the weight, plain or block.
        shape: logical shape ``(N, K)`` or ``(E, N, K)``.
        layout: name of the layout, ``tile16``.
        data: uint8 ``[num_tiles · tile_bytes]``, contiguous, matrix by matrix.
        columns: ``[K]`` or ``[E, K]`` i32, as in ``QuantTensor``.
    """

    dtype: DType
    shape: tuple[int, ...]
    layout: str
    data: "np.ndarray[Any, np.dtype[np.uint8]]"
    columns: "np.ndarray[Any, np.dtype[np.int32]] | None" = None

    def __post_init__(self) -> None:
        if self.layout != TILE16:
            raise DTypeError(f"[PackedTensor] layout: expected {TILE16}, got {self.layout!r}")
        if len(self.shape) not in (2, 3):
            raise ShapeError(
                f"[PackedTensor] shape: expected (N, K) or (E, N, K), got {self.shape}"
            )
        data = self.data
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ShapeError(
                f"[PackedTensor] data: expected contiguous uint8 [bytes], got {data.dtype} "
                f"{data.shape}"
            )
        # Every layout keeps at least the file's bytes of each row.
        least = self.num_tiles * TILE_ROWS * self.dtype.row_bytes(self.shape[-1])
        if data.size < least or (self.num_tiles and data.size % self.num_tiles):
            raise ShapeError(
                f"[PackedTensor] data: expected {self.num_tiles} tiles of at least "
                f"{least} bytes in all, got {data.size}"
            )

    @property
    def ndim(self) -> int:
        """Number of logical dims."""
        return len(self.shape)

    @property
    def num_tiles(self) -> int:
        """Number of tiles, of all matrices."""
        return math.prod(self.shape[:-2]) * cdiv(self.shape[-2], TILE_ROWS)

    @property
    def nbytes(self) -> int:
        """Bytes of the tiles."""
        return int(self.data.nbytes)

    def matrix(self, index: int) -> "PackedTensor":
        """Return a matrix ``(N, K)`` of a stack ``(E, N, K)``; a view."""
        num_matrices, *shape = self.shape
        size = self.data.size // num_matrices
        tiles = self.data[index * size : (index + 1) * size]
        columns = None if self.columns is None else self.columns[index]
        return PackedTensor(self.dtype, tuple(shape), self.layout, tiles, columns)
