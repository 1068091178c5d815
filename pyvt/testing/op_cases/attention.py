"""Cases of the attention family.

What an op must not read is poison: slots outside every sequence hold NaN, block-table entries past
a sequence hold ids outside the pool.
"""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.mathutil import cdiv
from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

POISON_BLOCK = -1


def paged_cache(
    rng: np.random.Generator,
    dtype: "np.dtype[Any]",
    seq_lens: list[int],
    shape: tuple[int, int, int],
) -> Inputs:
    """Return random caches, their block tables and sequence lengths, as keyword arguments.

    ``shape`` is block size, KV heads, head size. Blocks of a request are scattered over the pool;
    what belongs to no request is poison.
    """
    block_size = shape[0]
    num_used = [cdiv(seq_len, block_size) for seq_len in seq_lens]
    num_blocks = sum(num_used) + 2
    block_ids = rng.permutation(num_blocks)
    block_tables = np.full((len(seq_lens), max(num_used, default=0) + 1), POISON_BLOCK, np.int32)
    is_token = np.zeros((num_blocks, block_size), bool)
    for r, seq_len in enumerate(seq_lens):
        table, block_ids = block_ids[: num_used[r]], block_ids[num_used[r] :]
        block_tables[r, : num_used[r]] = table
        j = np.arange(seq_len)
        is_token[table[j // block_size], j % block_size] = True
    caches = {}
    for name in ("k_cache", "v_cache"):
        caches[name] = normal(rng, dtype, num_blocks, *shape)
        caches[name][~is_token] = np.nan
    return {
        **caches,
        "block_tables": block_tables,
        "seq_lens": np.array(seq_lens, np.int32),
    }


def _paged(
    query_lens: list[int],
    seq_lens: list[int],
    heads: tuple[int, int, int] = (6, 2, 8),
    block_size: int = 4,
    *,
    scale: float | None = None,
    cache: Any = None,
    has_lse: bool = False,
    **settings: Any,
) -> MakeInputs:
    num_heads, num_kv_heads, head_dim = heads

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        shape = (block_size, num_kv_heads, head_dim)
        num_tokens = sum(query_lens)
        accum = np.float64 if dtype == np.float64 else np.float32
        lse = {"lse": np.zeros((num_tokens, num_heads), accum)} if has_lse else {}
        return {
            "q": normal(rng, dtype, num_tokens, num_heads, head_dim),
            **paged_cache(rng, np.dtype(cache or dtype), seq_lens, shape),
            "cu_seqlens_q": np.cumsum([0, *query_lens], dtype=np.int32),
            "scale": head_dim**-0.5 if scale is None else scale,
            **settings,
            **lse,
        }

    return make


def _merge(
    num_tokens: int, num_heads: int, head_dim: int, *, has_empty: bool = False
) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        accum = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        inputs = {}
        for part in ("a", "b"):
            inputs[f"out_{part}"] = normal(rng, dtype, num_tokens, num_heads, head_dim)
            inputs[f"lse_{part}"] = normal(rng, accum, num_tokens, num_heads, scale=4.0)
        if has_empty:
            inputs["lse_a"][:4, 0] = (-np.inf, np.inf, -np.inf, 0.0)
            inputs["lse_b"][:4, 0] = (0.0, 1.0, np.inf, -np.inf)
            inputs["out_a"][:3, 0] = np.nan
            inputs["out_b"][2:4, 0] = np.nan
        return inputs | {"lse": np.zeros((num_tokens, num_heads), accum)}

    return make


CASES = (
    *rows(
        {
            "one": _paged([1], [1], (1, 1, 1), 1),
            "decode": _paged([1, 1, 1, 1], [3, 4, 5, 13]),
            "prefill": _paged([7], [7]),
            "prefill_chunk": _paged([5], [13]),
            "mixed": _paged([1, 6, 0, 3], [9, 6, 5, 8]),
            "multi_head": _paged([2, 1], [5, 7], (3, 3, 8)),
            "multi_query": _paged([2, 1], [5, 7], (5, 1, 8)),
            "odd_head_dim": _paged([3], [11], (4, 2, 7), 3),
            "window": _paged([1, 5], [14, 11], window=4),
            "window_one": _paged([3], [6], window=1),
            "window_wide": _paged([3], [6], window=100),
            "soft_cap": _paged([1, 4], [6, 9], scale=1.0, soft_cap=1.5),
            "window_soft_cap": _paged([6], [10], window=3, soft_cap=0.7),
            "sharp": _paged([4], [9], scale=30.0),
            "empty": _paged([], []),
        },
        "paged_attention",
        op_class="attention",
    ),
    *rows(
        {"lse": _paged([1, 4], [6, 9], has_lse=True)},
        "paged_attention",
        op_class="attention",
        mutates=("lse",),
    ),
    *rows(
        {
            "smollm_heads": _paged([1, 2], [9, 4], (9, 3, 64)),
            "bf16_cache": _paged([1, 3], [9, 4], cache=ml_dtypes.bfloat16),
            "fp8_cache": _paged([1, 3], [9, 4], cache=ml_dtypes.float8_e4m3fn),
            "fp8_window": _paged([1, 5], [14, 11], window=4, cache=ml_dtypes.float8_e4m3fn),
        },
        "paged_attention",
        dtypes=("f32",),
        op_class="attention",
    ),
    *rows(
        {"smollm_decode": _paged([1], [500], (9, 3, 64), 16)},
        "paged_attention",
        dtypes=("f32",),
        op_class="attention",
        has_golden=False,
    ),
    *rows(
        {
            "one": _merge(1, 1, 1),
            "odd": _merge(5, 3, 7),
            "empty_sets": _merge(5, 2, 8, has_empty=True),
        },
        "merge_attn_states",
        op_class="attention",
        mutates=("lse",),
        origin="self",
    ),
)
