"""Layouts of packed weights: how the rows of a file become the tiles that native kernels read.

A weight ``[N, K]`` is cut into tiles of 16 rows; missing rows of the last tile are zero bytes. A
layout only moves bytes, so unpacking a packed weight gives the file's bytes back.

The plain dtypes: a row is cut into words of 32 bits (one f32, or two of bf16 or f16; an odd K ends
in a half word of zero), and a tile is ``[words][16 rows]`` of them. The block formats are in
``packed_int8``.

A stack of matrices ``[E, N, K]`` is the tiles of one matrix after those of the other.

Dims: E matrices of a stack, N rows, K elements of a row, B tiles.
"""

import numpy as np

from pyvt.errors import ShapeError
from pyvt.mathutil import cdiv, round_up
from pyvt.ops.numerics import Array
from pyvt.ops.packed_int8 import FIELDS, pack, unpack
from pyvt.ops.tile_layout import TileLayout
from pyvt.tensor.dtype import DTYPES, DType
from pyvt.tensor.packed_tensor import TILE16, TILE_ROWS, PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, matrix_of, stored_dtype, stored_rows

_WORD_BYTES = 4


def _words_tile_bytes(row_bytes: int) -> int:
    return round_up(row_bytes, _WORD_BYTES) * TILE_ROWS


def _pack_words(rows: Array) -> Array:
    padded = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[-1] % _WORD_BYTES)))
    words = np.ascontiguousarray(padded.view(np.uint32).swapaxes(1, 2))
    return words.view(np.uint8).reshape(len(rows), _words_tile_bytes(rows.shape[-1]))


def _unpack_words(tiles: Array, row_bytes: int) -> Array:
    num_words = cdiv(row_bytes, _WORD_BYTES)
    words = tiles.view(np.uint32).reshape(len(tiles), num_words, TILE_ROWS)
    return np.ascontiguousarray(words.swapaxes(1, 2)).view(np.uint8)[..., :row_bytes]


_WORDS = TileLayout(_words_tile_bytes, _pack_words, _unpack_words)


def _int8_layout(dtype: DType) -> TileLayout:
    """Return the layout of a block format: a tile has the bytes of its rows, none more."""

    def pack_rows(rows: Array) -> Array:
        num_tiles, _, row_bytes = rows.shape
        tile_bytes = TILE_ROWS * row_bytes
        if num_tiles == 0:
            return np.empty((0, tile_bytes), np.uint8)
        return pack(dtype, rows.reshape(num_tiles * TILE_ROWS, row_bytes))

    def unpack_rows(tiles: Array, row_bytes: int) -> Array:
        num_rows = len(tiles) * TILE_ROWS
        if num_rows == 0:
            return np.empty((0, TILE_ROWS, row_bytes), np.uint8)
        return unpack(dtype, tiles, num_rows).reshape(len(tiles), TILE_ROWS, row_bytes)

    return TileLayout(lambda row_bytes: TILE_ROWS * row_bytes, pack_rows, unpack_rows)


LAYOUTS: dict[str, TileLayout] = {
    **{"f32": _WORDS, "bf16": _WORDS, "f16": _WORDS},
    **{name: _int8_layout(DTYPES[name]) for name in FIELDS},
}


def pack_tiles(weight: Stored) -> PackedTensor:
    """Return a weight ``[N, K]`` or a stack ``[E, N, K]`` in layout ``tile16``.

    What every packer must give to the byte.
    """
    if weight.ndim == 3:
        packed = [pack_tiles(matrix_of(weight, i)).data for i in range(weight.shape[0])]
        data = np.concatenate([np.empty(0, np.uint8), *packed])
        return PackedTensor(stored_dtype(weight), weight.shape, TILE16, data)
    dtype, stored = stored_dtype(weight), stored_rows(weight)
    num_tiles, num_bytes = cdiv(len(stored), TILE_ROWS), stored.shape[1]
    rows = np.zeros((num_tiles * TILE_ROWS, num_bytes), np.uint8)
    rows[: len(stored)] = stored
    tiles = LAYOUTS[dtype.name].pack(rows.reshape(num_tiles, TILE_ROWS, num_bytes))
    return PackedTensor(dtype, (weight.shape[0], weight.shape[1]), TILE16, tiles.reshape(-1))


def unpack_tiles(packed: PackedTensor, first_tile: int, last_tile: int) -> Stored:
    """Return the rows of tiles ``[first_tile, last_tile)`` of a matrix as they lie in a file."""
    dtype, (num_rows, num_columns) = packed.dtype, packed.shape
    num_tiles, num_bytes = last_tile - first_tile, dtype.row_bytes(num_columns)
    tile_bytes = LAYOUTS[dtype.name].tile_bytes(num_bytes)
    if packed.data.size != packed.num_tiles * tile_bytes:
        raise ShapeError(
            f"[packed_linear] weight: expected {packed.num_tiles} tiles of {tile_bytes} bytes, "
            f"got {packed.data.size} bytes"
        )
    tiles = packed.data[first_tile * tile_bytes : last_tile * tile_bytes]
    rows = LAYOUTS[dtype.name].unpack(tiles.reshape(num_tiles, tile_bytes), num_bytes)
    rows = np.ascontiguousarray(rows).reshape(num_tiles * TILE_ROWS, num_bytes)
    rows = rows[: num_rows - first_tile * TILE_ROWS]
    shape = (len(rows), num_columns)
    if dtype.numpy is None:
        return QuantTensor(dtype, shape, rows)
    return rows.reshape(-1).view(dtype.numpy).reshape(shape)
