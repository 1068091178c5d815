"""Layouts of packed weights: how the rows of a file become the tiles that native kernels read.

A weight ``[N, K]`` is cut into tiles of 16 rows; missing rows of the last tile are zero bytes. A
layout only moves bytes, so unpacking a packed weight gives the file's bytes back.

The plain dtypes: a row is cut into words of 32 bits (one f32, or two of bf16 or f16; an odd K ends
in a half word of zero), and a tile is ``[words][16 rows]`` of them. The block formats are in
``packed_layouts_int8``.

Dims: N rows, K elements of a row, B tiles.
"""

import numpy as np

from pyvt.mathutil import round_up
from pyvt.ops.numerics import Array
from pyvt.ops.packed_layouts_int8 import INT8_LAYOUTS
from pyvt.ops.tile_layout import TileLayout
from pyvt.tensor.packed_tensor import (
    TILE16,
    TILE_ROWS,
    PackedTensor,
    stored_dtype,
    stored_rows,
)
from pyvt.tensor.quant_tensor import QuantTensor

_WORD_BYTES = 4


def _words_tile_bytes(row_bytes: int) -> int:
    return round_up(row_bytes, _WORD_BYTES) * TILE_ROWS


def _pack_words(rows: Array) -> Array:
    padded = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[-1] % _WORD_BYTES)))
    words = padded.view(np.uint32).swapaxes(1, 2)
    return np.ascontiguousarray(words).reshape(len(rows), -1).view(np.uint8)


def _unpack_words(tiles: Array, row_bytes: int) -> Array:
    words = tiles.view(np.uint32).reshape(len(tiles), -1, TILE_ROWS).swapaxes(1, 2)
    return np.ascontiguousarray(words).view(np.uint8)[..., :row_bytes]


_WORDS = TileLayout(_words_tile_bytes, _pack_words, _unpack_words)
LAYOUTS: dict[str, TileLayout] = {"f32": _WORDS, "bf16": _WORDS, "f16": _WORDS, **INT8_LAYOUTS}


def pack_tiles(weight: Array | QuantTensor) -> PackedTensor:
    """Return a weight ``[N, K]`` in layout ``tile16``; what every packer must give to the byte."""
    dtype, stored = stored_dtype(weight), stored_rows(weight)
    rows = np.zeros((round_up(len(stored), TILE_ROWS), stored.shape[1]), np.uint8)
    rows[: len(stored)] = stored
    tiles = LAYOUTS[dtype.name].pack(rows.reshape(-1, TILE_ROWS, stored.shape[1]))
    return PackedTensor(dtype, (weight.shape[0], weight.shape[1]), TILE16, tiles.reshape(-1))


def unpack_tiles(packed: PackedTensor, first_tile: int, last_tile: int) -> Array | QuantTensor:
    """Return the rows of tiles ``[first_tile, last_tile)`` as they lie in a file."""
    dtype, (num_rows, num_columns) = packed.dtype, packed.shape
    num_bytes = dtype.row_bytes(num_columns)
    tile_bytes = LAYOUTS[dtype.name].tile_bytes(num_bytes)
    tiles = packed.data[first_tile * tile_bytes : last_tile * tile_bytes].reshape(-1, tile_bytes)
    rows = LAYOUTS[dtype.name].unpack(tiles, num_bytes).reshape(-1, num_bytes)
    rows = np.ascontiguousarray(rows[: num_rows - first_tile * TILE_ROWS])
    shape = (len(rows), num_columns)
    if dtype.numpy is None:
        return QuantTensor(dtype, shape, rows)
    return rows.view(dtype.numpy).reshape(shape)
