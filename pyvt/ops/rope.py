"""Rotary position embedding.

Dims: T tokens, N query heads, Nk KV heads, D head size, R rotated dims (even, at most D),
P positions of a table.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import F32, F64, FLOATS, I64, DType

ROPE_COS_SIN = declare("rope_cos_sin", is_of_load=True)
# Positions whose angles the reference holds at a time.
_TILE_POSITIONS = 4096

ROTARY_EMBEDDING = declare("rotary_embedding", num_outputs=2)


def rope_cos_sin(
    inv_freq: Array,
    num_positions: int,
    attention_factor: float = 1.0,
    *,
    first_position: int = 0,
    dtype: DType | str = F32,
    out: Array | None = None,
) -> Array:
    """Table of the cosines and sines of consecutive positions; angles in f64, rounded once.

    ``out[p] = attention_factor * [cos(a), sin(a)]`` with ``a = (first_position + p) * inv_freq``.

    Args:
        inv_freq: ``[R/2]`` f64, the angle of one position in radians.
        num_positions: P.
        attention_factor: factor of both halves; 1 for every rope type but yarn.
        first_position: position of the first row, so that a table can grow.
        dtype: f64|f32|bf16|f16 or its name.
        out: ``[P, R]``, ``dtype``; cosines in the first half of a row, sines in the second.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Su et al. 2021, arXiv:2104.09864; the factor: Peng et al. 2023, arXiv:2309.00071.
    """
    check = Check("rope_cos_sin")
    check.tensor("inv_freq", inv_freq, "_", (F64,))
    check.integer("num_positions", num_positions, low=0)
    check.integer("first_position", first_position, low=0)
    check.number("attention_factor", attention_factor)
    to = check.named_dtype("dtype", dtype, FLOATS)
    out = check.output(out, (num_positions, 2 * inv_freq.shape[0]), to)
    ROPE_COS_SIN(out, inv_freq, first_position, attention_factor)
    return out


@ROPE_COS_SIN.reference
def _rope_cos_sin(
    out: Array, inv_freq: Array, first_position: int, attention_factor: float
) -> None:
    for start in range(0, out.shape[0], _TILE_POSITIONS):
        rows = out[start : start + _TILE_POSITIONS]
        positions = np.arange(len(rows), dtype=np.float64) + (first_position + start)
        angles = positions[:, None] * inv_freq
        half = inv_freq.shape[0]
        round_into(rows[:, :half], np.cos(angles) * attention_factor)
        round_into(rows[:, half:], np.sin(angles) * attention_factor)


def rotary_embedding(q: Array, k: Array, positions: Array, cos_sin: Array) -> None:
    """Rotate the first R dims of every query and key head by the angles of its position, in place.

    With ``x1`` the first R/2 dims of a head and ``x2`` the next R/2:
    ``x1, x2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin``. Dims R to D-1 are not touched.

    Args:
        q: ``[T, N, D]`` f64|f32|bf16|f16; overwritten.
        k: ``[T, Nk, D]``, the dtype of ``q``; overwritten. May lie beside ``q`` in one
            buffer, and shares no element with it.
        positions: ``[T]`` i64, each in ``[0, P)``.
        cos_sin: ``[P, R]`` f64|f32|bf16|f16, a table of ``rope_cos_sin``.

    Raises:
        ShapeError: also for a position outside the table.
        DTypeError.

    Source: Su et al. 2021, arXiv:2104.09864, with the pairing of GPT-NeoX; vLLM
    ``RotaryEmbedding.forward_native``.
    """
    check = Check("rotary_embedding")
    check_rotary(check, q, k, positions, cos_sin)
    ROTARY_EMBEDDING(q, k, positions, cos_sin)


def check_rotary(check: Check, q: Array, k: Array, positions: Array, cos_sin: Array) -> None:
    """Check what ``rotary_embedding`` asks of its arguments, for an op that has them too."""
    check.tensor("q", q, "T N D", FLOATS)
    check.tensor("k", k, "T Nk D", FLOATS)
    check.same_dtype("k", k, "q", q)
    check.tensor("positions", positions, "T", (I64,))
    check.tensor("cos_sin", cos_sin, "P R", FLOATS)
    num_rotated, head_dim = cos_sin.shape[1], q.shape[2]
    if num_rotated % 2 or num_rotated > head_dim:
        raise check.fail("cos_sin", f"an even R of at most D={head_dim}", num_rotated)
    check.index("positions", positions, cos_sin.shape[0])
    check.writeable("q", q)
    check.writeable("k", k)
    check.apart("k", k, "q", q)


@ROTARY_EMBEDDING.reference
def _rotary_embedding(q: Array, k: Array, positions: Array, cos_sin: Array) -> None:
    accum = accum_dtype(q, cos_sin)
    rows = np.take(cos_sin, positions, axis=0).astype(accum)
    half = rows.shape[-1] // 2
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    for x in (q, k):
        x1, x2 = x[..., :half].astype(accum), x[..., half : 2 * half].astype(accum)
        round_into(x[..., :half], x1 * cos - x2 * sin)
        round_into(x[..., half : 2 * half], x2 * cos + x1 * sin)
