"""Tiles of the block formats with int8 kernels: how the blocks of 16 rows lie side by side.

A tile is a list of blocks, each with the fields of the format one after the other:

1. A field is ``[count][16 rows]`` units, each one byte, an f16, or a word of four bytes; the words
   of codes keep the bytes of the file, so that a word holds the same columns of each row. Fields of
   words may lie in turn: then unit i of each follows unit i of the one before.
2. A word of fifth bits (Q5_0, Q5_1) has its bits moved: bit ``4j + i`` of the file is bit
   ``8i + j`` of the tile.
3. The formats with grids (IQ2, IQ3) have one unit, the whole block.
4. The last tile is filled up with rows of zero bytes.

Nothing is lost or added: unpacking gives the file's bytes back.

Dims: N rows, B tiles, C blocks of a row.
"""

from dataclasses import dataclass

import numpy as np

from pyvt.mathutil import cdiv
from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import DTYPES, DType
from pyvt.tensor.packed_tensor import TILE_ROWS


@dataclass(frozen=True, slots=True)
class Field:
    """A run of units of a block.

    Attributes:
        offset: first byte in the block of a file.
        count: number of units.
        unit: bytes of a unit: 1, 2 or 4; or those of a whole block.
        start: first byte in the block of a tile.
        step: unit i of the 16 rows lies ``i · step`` times 16 units after ``start``.
        is_bits: whether it is a word of fifth bits.
    """

    offset: int
    count: int
    unit: int
    start: int
    step: int = 1
    is_bits: bool = False

    def file_bytes(self) -> slice:
        """Return the bytes of the run in a block of a file."""
        return slice(self.offset, self.offset + self.count * self.unit)

    def tile_bytes(self, index: int) -> slice:
        """Return the bytes of one unit of all rows in a block of a tile."""
        num_bytes = self.unit * TILE_ROWS
        first = self.start + index * self.step * num_bytes
        return slice(first, first + num_bytes)


_D = Field(0, 1, 2, 0)
_M = Field(2, 1, 2, 32)
_SIX_BITS = Field(4, 12, 1, 64)


def _scaled_fields(size: int) -> dict[str, tuple[Field, ...]]:
    """Return the fields of blocks of ``size`` with one f32 scale."""
    scale, num_scales = Field(0, 1, 4, 0), size // 16
    return {
        f"int4_g{size}": (scale, Field(4, 1, 1, 64), Field(5, size // 8, 4, 80)),
        f"int8_g{size}": (scale, Field(4, size // 4, 4, 64)),
        f"nvfp4_g{size}": (
            *(scale, Field(4, num_scales, 1, 64)),
            Field(4 + num_scales, size // 8, 4, 64 + 16 * num_scales),
        ),
        f"fp8_g{size}": (scale, Field(4, size // 4, 4, 64)),
    }


# The twin of kFields in csrc/cpu/kernels/linear_*.cpp.
FIELDS: dict[str, tuple[Field, ...]] = {
    "q8_0": (_D, Field(2, 8, 4, 32)),
    "q4_0": (_D, Field(2, 4, 4, 32)),
    "q4_1": (_D, _M, Field(4, 4, 4, 64)),
    "q5_0": (_D, Field(2, 1, 4, 32, is_bits=True), Field(6, 4, 4, 96)),
    "q5_1": (_D, _M, Field(4, 1, 4, 64, is_bits=True), Field(8, 4, 4, 128)),
    "q2_k": (
        *(Field(80, 1, 2, 0), Field(82, 1, 2, 32), Field(0, 16, 1, 64)),
        Field(16, 16, 4, 320),
    ),
    # Third bits in turn with the words of the first half, then the other half.
    "q3_k": (
        *(Field(108, 1, 2, 0), Field(96, 12, 1, 32)),
        *(Field(0, 8, 4, 224, 2), Field(32, 8, 4, 288, 2), Field(64, 8, 4, 1248)),
    ),
    "q4_k": (_D, _M, _SIX_BITS, Field(16, 32, 4, 256)),
    # Fifth bits in turn with the words of the first pair of sub-blocks, then the other pairs.
    "q5_k": (
        *(_D, _M, _SIX_BITS),
        *(Field(16, 8, 4, 256, 2), Field(48, 8, 4, 320, 2), Field(80, 24, 4, 1280)),
    ),
    # In each half two words of low bits and one of high bits in turn.
    "q6_k": (
        *(Field(208, 1, 2, 0), Field(192, 16, 1, 32)),
        *(Field(0, 8, 4, 288, 3), Field(32, 8, 4, 352, 3), Field(128, 8, 4, 416, 3)),
        *(Field(64, 8, 4, 1824, 3), Field(96, 8, 4, 1888, 3), Field(160, 8, 4, 1952, 3)),
    ),
    **{
        name: (Field(0, 1, DTYPES[name].block_bytes, 0),)
        for name in ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
    },
    "iq4_nl": (_D, Field(2, 4, 4, 32)),
    "iq4_xs": (_D, Field(2, 2, 1, 32), Field(4, 4, 1, 64), Field(8, 32, 4, 128)),
    "mxfp4": (Field(0, 1, 1, 0), Field(1, 4, 4, 16)),
    "nvfp4": (Field(0, 4, 1, 0), Field(4, 8, 4, 64)),
    **_scaled_fields(128),
    **_scaled_fields(32),
}

_FILE_BITS = np.arange(32)
_TILE_BITS = _FILE_BITS % 4 * 8 + _FILE_BITS // 4


def pack(dtype: DType, blocks: Array) -> Array:
    """Lay rows of blocks as tiles.

    Args:
        dtype: a format of ``FIELDS``.
        blocks: uint8 ``[N, row_bytes]``.

    Returns:
        uint8 ``[ceil(N / 16), 16 · row_bytes]``.
    """
    num_rows, row_bytes = blocks.shape
    num_tiles = cdiv(num_rows, TILE_ROWS)
    rows = np.zeros((num_tiles * TILE_ROWS, row_bytes), np.uint8)
    rows[:num_rows] = blocks
    by_block = rows.reshape(num_tiles, TILE_ROWS, -1, dtype.block_bytes).swapaxes(1, 2)
    tiles = np.empty((*by_block.shape[:2], TILE_ROWS * dtype.block_bytes), np.uint8)
    for field in FIELDS[dtype.name]:
        run = by_block[..., field.file_bytes()]
        if field.is_bits:
            run = _move_bits(run, _FILE_BITS, _TILE_BITS)
        units = run.reshape(*run.shape[:3], field.count, field.unit)
        for i in range(field.count):
            tiles[..., field.tile_bytes(i)] = units[..., i, :].reshape(*run.shape[:2], -1)
    return tiles.reshape(num_tiles, -1)


def unpack(dtype: DType, tiles: Array, num_rows: int) -> Array:
    """Return the blocks uint8 ``[N, row_bytes]`` that ``pack`` laid as ``tiles``."""
    num_tiles = len(tiles)
    by_block = tiles.reshape(num_tiles, -1, TILE_ROWS * dtype.block_bytes)
    rows = np.empty((*by_block.shape[:2], TILE_ROWS, dtype.block_bytes), np.uint8)
    for field in FIELDS[dtype.name]:
        units = np.empty((*rows.shape[:3], field.count, field.unit), np.uint8)
        for i in range(field.count):
            unit = by_block[..., field.tile_bytes(i)]
            units[..., i, :] = unit.reshape(*rows.shape[:3], field.unit)
        run = units.reshape(*rows.shape[:3], -1)
        if field.is_bits:
            run = _move_bits(run, _TILE_BITS, _FILE_BITS)
        rows[..., field.file_bytes()] = run
    return rows.swapaxes(1, 2).reshape(num_tiles * TILE_ROWS, -1)[:num_rows]


def _move_bits(words: Array, source: Array, target: Array) -> Array:
    """Return words ``[..., 4]`` bytes with bit ``source[i]`` moved to bit ``target[i]``."""
    bits = np.unpackbits(words, axis=-1, bitorder="little")
    moved = np.empty_like(bits)
    moved[..., target] = bits[..., source]
    return np.packbits(moved, axis=-1, bitorder="little")
