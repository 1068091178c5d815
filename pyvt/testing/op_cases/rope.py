"""Cases of the rotary embedding.

Numbers of tokens, heads, KV heads and head size differ everywhere, so that no two dims can be
mixed up unnoticed.
"""

from typing import Any

import numpy as np

from pyvt.tensor import dtype_of
from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

_FAR = (8191, 20000, 131071)


def _inv_freq(num_rotated: int, theta: float) -> np.ndarray[Any, Any]:
    return theta ** -(np.arange(0, num_rotated, 2, dtype=np.float64) / max(1, num_rotated))


def _table(num_rotated: int, num_positions: int, **scalars: Any) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {
            "inv_freq": _inv_freq(num_rotated, 1e4),
            "num_positions": num_positions,
            "dtype": dtype_of(np.empty(0, dtype)).name,
            **scalars,
        }

    return make


def _heads(
    rng: np.random.Generator, dtype: "np.dtype[Any]", num_tokens: int, heads: tuple[int, int, int]
) -> Inputs:
    num_heads, num_kv_heads, head_dim = heads
    return {
        "q": normal(rng, dtype, num_tokens, num_heads, head_dim),
        "k": normal(rng, dtype, num_tokens, num_kv_heads, head_dim),
    }


def cos_sin_of(
    positions: np.ndarray[Any, Any], num_rotated: int, num_positions: int, dtype: "np.dtype[Any]"
) -> np.ndarray[Any, Any]:
    """Return a table that holds the rows of ``positions`` and zeros elsewhere."""
    table = np.zeros((num_positions, num_rotated))
    angles = positions[:, None] * _inv_freq(num_rotated, 1e6)
    table[positions] = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return table.astype(dtype)


def _rope(
    num_tokens: int,
    heads: tuple[int, int, int],
    num_rotated: int,
    *,
    far: tuple[int, ...] = (),
    table_dtype: Any = None,
) -> MakeInputs:
    """Positions 0 and up in any order, the last ones replaced by ``far``."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        positions = rng.permutation(num_tokens).astype(np.int64)
        positions[num_tokens - len(far) :] = far
        num_positions = int(positions.max(initial=0)) + 1
        of_table = dtype if table_dtype is None else np.dtype(table_dtype)
        return {
            **_heads(rng, dtype, num_tokens, heads),
            "positions": positions,
            "cos_sin": cos_sin_of(positions, num_rotated, num_positions, of_table),
        }

    return make


def _fused_buffer(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Queries and keys as views of one buffer of fused projections."""
    qkv = normal(rng, dtype, 4, (5 + 2 * 2) * 12)
    positions = np.array([3, 0, 2, 2], np.int64)
    return {
        "q": qkv[:, : 5 * 12].reshape(4, 5, 12),
        "k": qkv[:, 5 * 12 : 7 * 12].reshape(4, 2, 12),
        "positions": positions,
        "cos_sin": cos_sin_of(positions, 12, 4, dtype),
    }


CASES = (
    *rows(
        {
            "one": _table(2, 1),
            "below_vector": _table(6, 7),
            "vector": _table(8, 8),
            "odd": _table(22, 33),
            "factor": _table(16, 9, attention_factor=1.3),
            "far": _table(16, 16, first_position=131072 - 16),
            "head_64": _table(64, 5, first_position=8190),
            "no_positions": _table(16, 0),
            "no_dims": _table(0, 3),
        },
        "rope_cos_sin",
        op_class="rope",
    ),
    *rows({"model": _table(64, 2048)}, "rope_cos_sin", op_class="rope", has_golden=False),
    *rows(
        {
            "one": _rope(1, (1, 1, 2), 2),
            "below_vector": _rope(3, (4, 2, 6), 6),
            "vector": _rope(3, (4, 2, 16), 16),
            "odd": _rope(5, (3, 1, 34), 34),
            "partial": _rope(3, (4, 2, 16), 4),
            "partial_odd_head": _rope(3, (4, 2, 7), 6),
            "no_dims": _rope(3, (4, 2, 8), 0),
            "no_kv_heads": _rope(3, (4, 0, 8), 8),
            "far": _rope(4, (3, 2, 6), 6, far=_FAR),
            "far_partial": _rope(4, (3, 2, 10), 4, far=_FAR),
            "head_64": _rope(2, (9, 3, 64), 64),
            "fused_buffer": _fused_buffer,
            "empty": _rope(0, (4, 2, 16), 16),
        },
        "rotary_embedding",
        op_class="rope",
        mutates=("q", "k"),
        takes_out=False,
    ),
    *rows(
        {"table_f32": _rope(4, (3, 2, 6), 6, far=_FAR, table_dtype=np.float32)},
        "rotary_embedding",
        op_class="rope",
        mutates=("q", "k"),
        takes_out=False,
        dtypes=("bf16", "f16"),
    ),
)
