"""QuantTensor: a packed weight in its block format, never expanded on its way to a kernel.

Dims: N rows (product of all leading dims), K elements of a row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.errors import DTypeError, ShapeError
from pyvt.mathutil import cdiv
from pyvt.tensor.dtype import DType


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """Blocks of one format with the logical shape of the tensor they hold.

    There are no arithmetic operators: every computation has a name in ``pyvt.ops``.

    Attributes:
        dtype: a block format.
        shape: logical shape ``[..., K]``; K is a positive multiple of ``dtype.block_size``.
        blocks: uint8 ``[..., K / block_size * block_bytes]``; may be a view of a mapped file.
        columns: ``[K]`` i32, where column j of the blocks is column ``columns[j]`` of the matrix,
            or ``[E, K]`` for the matrices of a stack; None where they are in their own order.
    """

    dtype: DType
    shape: tuple[int, ...]
    blocks: "np.ndarray[Any, np.dtype[np.uint8]]"
    columns: "np.ndarray[Any, np.dtype[np.int32]] | None" = None

    def __post_init__(self) -> None:
        if not self.dtype.is_block:
            raise DTypeError(f"[QuantTensor] dtype: expected a block format, got {self.dtype}")
        if not self.shape or self.shape[-1] == 0:
            raise ShapeError(f"[QuantTensor] shape: expected a block or more, got {self.shape}")
        expected = (*self.shape[:-1], self.dtype.row_bytes(self.shape[-1]))
        if self.blocks.dtype != np.uint8 or self.blocks.shape != expected:
            raise ShapeError(
                f"[QuantTensor] blocks: expected uint8 {expected}, "
                f"got {self.blocks.dtype} {self.blocks.shape}"
            )

    @property
    def ndim(self) -> int:
        """Number of logical dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed blocks."""
        return int(self.blocks.nbytes)

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return cdiv(self.size, self.dtype.block_size)

    def rows(self, index: Any) -> "QuantTensor":
        """Return the rows that ``index`` (a slice or an integer array) selects on the first dim."""
        blocks = self.blocks[index]
        return QuantTensor(self.dtype, (blocks.shape[0], *self.shape[1:]), blocks, self.columns)
