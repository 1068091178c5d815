"""Quantisers of blocks of 32: q4_0, q5_0, q5_1, q8_0.

Elements lie by columns, ``[32, B]``: a sum over a block is then a sum of whole rows.

1. ``q8_0``: ``d = max|x| / 127``, codes are ``x · (1 / d)``, halves away from zero.
2. ``q4_0``, ``q5_0``: the value of the largest magnitude, the first of several, becomes the lowest
   code: ``d = x / -8`` or ``x / -16``.
3. ``q5_1``: the least value becomes code 0, the greatest 31.

``d`` is used in f32 and stored in f16, as ggml does.

Dims: B blocks.

Source: ggml ``quantize_row_q4_0_ref`` and its siblings; equal to the ``gguf`` package to the bit.
"""

from typing import Any

import numpy as np

from pyvt.convert.bits import pack_fields
from pyvt.ops.block_formats import FORMATS

Array = np.ndarray[Any, Any]

BLOCK = 32


def encode_q8_0(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 34]``, of f32 values ``[B, 32]``."""
    columns = np.ascontiguousarray(x.T)
    largest = np.abs(columns).max(axis=0)
    d = largest / np.float32(127)
    columns *= _inverse(d)
    return _fields("q8_0", d=d, qs=_round_half_away(columns).astype(np.int8).T)


def encode_q4_0(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 18]``, of f32 values ``[B, 32]``."""
    d, codes = _symmetric(x, 8)
    return _fields("q4_0", d=d, qs=pack_fields(codes, 4, 16))


def encode_q5_0(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 22]``, of f32 values ``[B, 32]``."""
    d, codes = _symmetric(x, 16)
    return _fields("q5_0", d=d, qh=_fifth_bits(codes), qs=pack_fields(codes & 15, 4, 16))


def encode_q5_1(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 24]``, of f32 values ``[B, 32]``."""
    columns = np.ascontiguousarray(x.T)
    least = columns.min(axis=0)
    d = (columns.max(axis=0) - least) / np.float32(31)
    columns -= least
    columns *= _inverse(d)
    columns += np.float32(0.5)
    codes = np.minimum(columns.astype(np.uint8), 31).T
    return _fields("q5_1", d=d, m=least, qh=_fifth_bits(codes), qs=pack_fields(codes & 15, 4, 16))


def _symmetric(x: Array, middle: int) -> tuple[Array, Array]:
    """Return scales f32 ``[B]`` and codes uint8 ``[B, 32]`` of 0 to ``2 · middle - 1``."""
    columns = np.ascontiguousarray(x.T)
    high, low = columns.max(axis=0), columns.min(axis=0)
    extreme = np.where(high > -low, high, low)
    for block in np.flatnonzero(high == -low):
        extreme[block] = columns[np.abs(columns[:, block]).argmax(), block]
    d = extreme / np.float32(-middle)
    # One rounding, as a fused multiply-add has.
    steps = columns.astype(np.float64)
    steps *= _inverse(d)
    steps += middle + 0.5
    codes = np.minimum(steps.astype(np.float32).astype(np.uint8), 2 * middle - 1)
    return d, codes.T


def _inverse(d: Array) -> Array:
    """Return ``1 / d``, 0 for a scale of 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _round_half_away(x: Array) -> Array:
    magnitudes = np.abs(x)
    rounded = np.floor(magnitudes)
    magnitudes -= rounded
    rounded += magnitudes >= np.float32(0.5)
    return np.copysign(rounded, x, out=rounded)


def _fifth_bits(codes: Array) -> Array:
    return np.packbits(codes >> 4, axis=-1, bitorder="little")


def _fields(name: str, **values: Array) -> Array:
    """Return blocks of one format with its fields set, uint8 ``[B, block_bytes]``."""
    layout = FORMATS[name].layout
    blocks = np.empty(len(values["d"]), layout)
    with np.errstate(over="ignore"):
        for field, value in values.items():
            blocks[field] = value
    return blocks.view(np.uint8).reshape(len(blocks), layout.itemsize)
