"""Blocks with an f32 scale, from codes and scales of groups: the layouts of ``SCALED_BLOCKS``.

A group of a checkpoint is cut into blocks of 128 columns where its size allows, else of 32; each
block repeats the group's scale. Nothing else changes, so every value is the checkpoint's.

Dims: N outputs, K inputs, G groups of a row, S columns of a block, B = K / S.
"""

from typing import Any

import numpy as np

from pyvt.errors import UnsupportedError
from pyvt.tensor.dtype import DType, dtype_named
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.scaled_layout import SCALED_LAYOUTS

Array = np.ndarray[Any, Any]

BLOCK_SIZES = (128, 32)


def scaled_dtype(kind: str, group_size: int, num_columns: int, name: str) -> DType:
    """Return the format of ``kind`` whose blocks fit groups of that size.

    Raises UnsupportedError where none does.
    """
    for size in BLOCK_SIZES:
        if group_size % size == 0 and num_columns % size == 0:
            return dtype_named(f"{kind}_g{size}")
    raise UnsupportedError(
        f"[weights] {name}: expected groups and rows of a multiple of {BLOCK_SIZES[-1]} columns, "
        f"got groups of {group_size} in rows of {num_columns}"
    )


def nibbles_in_order(packed: Array) -> Array:
    """Return codes uint8 ``[..., 2n]`` of bytes ``[..., n]``: low half, then high half of each."""
    codes = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(*packed.shape[:-1], -1)


def half_split(codes: Array, width: int) -> Array:
    """Return bytes of codes ``[..., K]``: of 2 · ``width`` columns the first ones in low halves."""
    runs = codes.reshape(*codes.shape[:-1], -1, 2, width)
    packed: Array = runs[..., 0, :] | (runs[..., 1, :] << 4)
    return packed.reshape(*codes.shape[:-1], -1)


def blocks_of(
    dtype: DType, shape: tuple[int, ...], columns: Array | None = None, **fields: Array
) -> QuantTensor:
    """Return a packed tensor from its fields; ``columns`` as in ``QuantTensor``.

    A field is ``[..., G]``, one value for each of G groups of columns, and is repeated for their
    blocks, or ``[..., n · B]`` for the n bytes that each block has of it.
    """
    layout = SCALED_LAYOUTS[dtype.name]
    num_blocks = shape[-1] // dtype.block_size
    blocks = np.empty((*shape[:-1], num_blocks), layout)
    for name, values in fields.items():
        width = layout[name].shape
        if width:
            blocks[name] = values.reshape(*blocks.shape, *width)
        else:
            blocks[name] = np.repeat(values, num_blocks // values.shape[-1], axis=-1)
    return QuantTensor(dtype, shape, blocks.view(np.uint8).reshape(*shape[:-1], -1), columns)
