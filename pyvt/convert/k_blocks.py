"""Quantisers of superblocks of 256: q4_k, q5_k, q6_k.

The scale of a sub-block is searched: candidates a little above and below the plain one give codes,
codes give the best scale (and min) by weighted least squares, and the candidate of the least error
wins; with mins, the next candidate counts from the best one so far. Scales and mins are then
rounded to the bits that a superblock has for them, and the codes are made anew from what was
stored.

1. ``q4_k``, ``q5_k``: 8 sub-blocks of 32, ``x ≈ scale · code + min`` with ``min <= 0``; weights are
   ``rms + |x|``.
2. ``q6_k``: 16 sub-blocks of 16, ``x ≈ scale · code``; weights are ``x²``.

Elements lie by columns, ``[S, N]``: a sum over a sub-block is then a sum of whole rows, and each
step of the search is one pass over memory that the caches hold.

Dims: B superblocks, N sub-blocks, S elements of one.

Source: ggml ``make_qkx2_quants``, ``make_qx_quants``: the candidates and the weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.convert.bits import pack_fields, pack_six_bit_pairs
from pyvt.ops.block_formats import FORMATS

Array = np.ndarray[Any, Any]

SUPERBLOCK = 256
# A sub-block of smaller values is zero: its scale would be zero in f16.
_TINY = np.float32(1e-15)
_MAX_STEPS = 63


@dataclass(frozen=True, slots=True)
class _Affine:
    """A format with scales and mins: its highest code, and the candidates of the search."""

    top: int
    candidates: tuple[float, ...]


_Q4_K = _Affine(15, tuple(15 - 1 + 0.1 * i for i in range(21)))
_Q5_K = _Affine(31, tuple(31 - 0.5 + 0.1 * i for i in range(16)))
_Q6_K_CANDIDATES = tuple(32 + 0.1 * i for i in range(-9, 10))


def encode_q4_k(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 144]``, of f32 values ``[B, 256]``."""
    blocks, codes = _encode_affine("q4_k", _Q4_K, x)
    blocks["qs"] = pack_fields(codes, 4, 32)
    return _as_bytes(blocks)


def encode_q5_k(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 176]``, of f32 values ``[B, 256]``."""
    blocks, codes = _encode_affine("q5_k", _Q5_K, x)
    blocks["qs"] = pack_fields(codes & 15, 4, 32)
    blocks["qh"] = pack_fields(codes >> 4, 1, 32)
    return _as_bytes(blocks)


def encode_q6_k(x: Array) -> Array:
    """Return the blocks, uint8 ``[B, 210]``, of f32 values ``[B, 256]``."""
    blocks = np.zeros(len(x), FORMATS["q6_k"].layout)
    columns = np.ascontiguousarray(x.reshape(-1, 16).T)
    scales = _search_symmetric(columns).reshape(len(x), 16)
    high, low = scales.max(axis=1), scales.min(axis=1)
    extreme = np.where(high > -low, high, low)
    is_used = np.abs(extreme) >= _TINY
    factors = np.where(is_used, np.float32(-128) / _nonzero(extreme), np.float32(0))
    blocks["sc"] = np.minimum(np.rint(factors[:, None] * scales), 127)
    with np.errstate(over="ignore"):
        blocks["d"] = np.where(is_used, np.float32(1) / _nonzero(factors), np.float32(0))
    stored = blocks["d"].astype(np.float32)[:, None] * blocks["sc"]
    codes = _codes(columns, stored.reshape(-1), None, -32, 31)
    codes += np.float32(32)
    codes = codes.astype(np.uint8).T.reshape(len(x), SUPERBLOCK)
    blocks["ql"] = pack_fields(codes & 15, 4, 64)
    blocks["qh"] = pack_fields(codes >> 4, 2, 32)
    return _as_bytes(blocks)


def _encode_affine(name: str, form: _Affine, x: Array) -> tuple[Array, Array]:
    """Return blocks with scales and mins set, and codes uint8 ``[B, 256]``."""
    blocks = np.zeros(len(x), FORMATS[name].layout)
    columns = np.ascontiguousarray(x.reshape(-1, 32).T)
    scales, lows = (found.reshape(len(x), 8) for found in _search_affine(columns, form))
    steps, fields = [], {"d": scales, "dmin": -lows}
    stored = []
    for field, values in fields.items():
        largest = values.max(axis=1, initial=0)
        factors = np.where(largest > _TINY, np.float32(_MAX_STEPS) / _nonzero(largest), 0)
        rounded = np.minimum(np.rint(factors[:, None].astype(np.float32) * values), _MAX_STEPS)
        with np.errstate(over="ignore"):
            blocks[field] = largest / np.float32(_MAX_STEPS)
        steps.append(np.maximum(rounded, 0).astype(np.uint8))
        stored.append((blocks[field].astype(np.float32)[:, None] * steps[-1]).reshape(-1))
    blocks["sc"] = pack_six_bit_pairs(*steps)
    codes = _codes(columns, stored[0], stored[1], 0, form.top)
    return blocks, codes.astype(np.uint8).T.reshape(len(x), SUPERBLOCK)


def _codes(columns: Array, scales: Array, mins: Array | None, low: int, high: int) -> Array:
    """Return the nearest codes ``[S, N]`` as f32; 0 where the scale is 0. Works in ``columns``."""
    if mins is not None:
        columns += mins
    columns *= np.where(scales == 0, np.float32(0), np.float32(1) / _nonzero(scales))
    np.rint(columns, out=columns)
    return np.clip(columns, low, high, out=columns)


def _search_affine(columns: Array, form: _Affine) -> tuple[Array, Array]:
    """Return scales and lows, f32 ``[N]``, ``low <= 0``, for values ``[S, N]``."""
    high, low = columns.max(axis=0), np.minimum(columns.min(axis=0), 0)
    magnitudes = np.maximum(high, -low)
    # Values of about 1 have products that f32 holds.
    x = columns * _inverse(magnitudes)
    high, low = high * _inverse(magnitudes), low * _inverse(magnitudes)
    span = high - low
    weights = np.abs(x)
    weights += np.sqrt(np.einsum("sn,sn->n", x, x) / np.float32(len(x)))
    weighted = weights * x
    sum_w, sum_x = weights.sum(axis=0, dtype=np.float32), weighted.sum(axis=0, dtype=np.float32)
    sum_w, sum_x = sum_w.astype(np.float64), sum_x.astype(np.float64)
    best_scale, best_low = span.astype(np.float64) / form.top, low.astype(np.float64)
    best_gain = np.full(len(span), -np.inf)
    codes = np.empty_like(x)
    for candidate in form.candidates:
        # Codes are counted from the best low so far, which moves away from the least value.
        low = best_low.astype(np.float32)
        np.subtract(x, low, out=codes)
        codes *= np.float32(candidate) * _inverse(high - low)
        np.rint(codes, out=codes)
        np.clip(codes, 0, form.top, out=codes)
        sum_xl = np.einsum("sn,sn->n", weighted, codes).astype(np.float64)
        sum_l = np.einsum("sn,sn->n", weights, codes).astype(np.float64)
        sum_ll = np.einsum("sn,sn,sn->n", weights, codes, codes).astype(np.float64)
        determinant = sum_w * sum_ll - sum_l * sum_l
        is_sound = determinant > 0
        divisor = np.where(is_sound, determinant, 1)
        scale = (sum_w * sum_xl - sum_x * sum_l) / divisor
        offset = (sum_ll * sum_x - sum_l * sum_xl) / divisor
        is_positive = offset > 0
        scale = np.where(is_positive, sum_xl / np.where(is_positive, sum_ll, 1), scale)
        offset = np.minimum(offset, 0)
        # The squared error is that of no codes at all less this.
        gain = scale * sum_xl + offset * sum_x
        is_better = is_sound & (gain > best_gain)
        best_gain = np.where(is_better, gain, best_gain)
        best_scale = np.where(is_better, scale, best_scale)
        best_low = np.where(is_better, offset, best_low)
    return (best_scale * magnitudes).astype(np.float32), (best_low * magnitudes).astype(np.float32)


def _search_symmetric(columns: Array) -> Array:
    """Return signed scales, f32 ``[N]``, for values ``[S, N]`` and codes of -32 to 31."""
    high, low = columns.max(axis=0), columns.min(axis=0)
    extreme = np.where(high > -low, high, low)
    shares = columns * -_inverse(extreme)
    weights = shares * shares
    weighted = weights * shares
    best_score, best_scale = np.full(len(extreme), -np.inf), np.zeros(len(extreme))
    codes = np.empty_like(shares)
    for candidate in _Q6_K_CANDIDATES:
        np.multiply(shares, np.float32(candidate), out=codes)
        np.rint(codes, out=codes)
        np.minimum(codes, np.float32(31), out=codes)
        if candidate > 32.5:
            np.maximum(codes, np.float32(-32), out=codes)
        sum_xl = np.einsum("sn,sn->n", weighted, codes).astype(np.float64)
        sum_ll = np.einsum("sn,sn,sn->n", weights, codes, codes).astype(np.float64)
        divisor = np.where(sum_ll > 0, sum_ll, 1)
        score = sum_xl * sum_xl / divisor
        is_better = (sum_ll > 0) & (score > best_score)
        best_score = np.where(is_better, score, best_score)
        best_scale = np.where(is_better, sum_xl / divisor, best_scale)
    scales: Array = (best_scale * -extreme).astype(np.float32)
    return np.where(np.abs(extreme) < _TINY, np.float32(0), scales)


def _nonzero(values: Array) -> Array:
    """Return values with 1 in place of 0, to divide by."""
    return np.where(values == 0, np.float32(1), values)


def _inverse(values: Array) -> Array:
    """Return ``1 / x``, 0 where x is as good as zero."""
    is_tiny = np.abs(values) < _TINY
    return np.where(is_tiny, np.float32(0), np.float32(1) / np.where(is_tiny, 1, values)).astype(
        np.float32, copy=False
    )


def _as_bytes(blocks: Array) -> Array:
    return blocks.view(np.uint8).reshape(len(blocks), blocks.dtype.itemsize)
