"""Cases of the kv_cache family."""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows
from pyvt.testing.op_cases.rope import cos_sin_of

SMALL = (5, 4, 2, 3)  # blocks, block size, KV heads, head size
_FP8 = ml_dtypes.float8_e4m3fn
_F32 = ("f32",)


def _caches(
    rng: np.random.Generator, dtype: "np.dtype[Any]", shape: tuple[int, ...] = SMALL
) -> Inputs:
    return {"k_cache": normal(rng, dtype, *shape), "v_cache": normal(rng, dtype, *shape)}


def _write(
    slots: list[int], shape: tuple[int, ...] = SMALL, cache: Any = None, scale: float = 1.0
) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        new = (len(slots), *shape[2:])
        return {
            "k": normal(rng, dtype, *new, scale=scale),
            "v": normal(rng, dtype, *new, scale=scale),
            **_caches(rng, np.dtype(cache or dtype), shape),
            "slot_mapping": np.array(slots, np.int64),
        }

    return make


def _rotate(
    slots: list[int],
    heads: tuple[int, int, int],
    num_rotated: int,
    *,
    is_normed: bool = True,
    cache: Any = None,
    weight: Any = np.float32,
) -> MakeInputs:
    """Queries, keys and values as views of one buffer; two tokens may have one position."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        num_heads, num_kv_heads, head_dim = heads
        all_heads = num_heads + 2 * num_kv_heads
        qkv = normal(rng, dtype, len(slots), all_heads, head_dim)
        weights = 1 + rng.standard_normal((2, head_dim)) / 8
        positions = rng.permutation(len(slots)).astype(np.int64) // 2
        shape = (5, 4, num_kv_heads, head_dim)
        return {
            "q": qkv[:, :num_heads],
            "k": qkv[:, num_heads : num_heads + num_kv_heads],
            "v": qkv[:, num_heads + num_kv_heads :],
            "q_weight": weights[0].astype(weight or dtype) if is_normed else None,
            "k_weight": weights[1].astype(weight or dtype) if is_normed else None,
            "eps": 1e-6,
            "positions": positions,
            "cos_sin": cos_sin_of(positions, num_rotated, len(slots), dtype),
            **_caches(rng, np.dtype(cache or dtype), shape),
            "slot_mapping": np.array(slots, np.int64),
        }

    return make


def _copy(pairs: list[tuple[int, int]], cache: Any = None) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        src_dst = np.array(pairs, np.int64).reshape(-1, 2)
        return {**_caches(rng, np.dtype(cache or dtype)), "src_dst": src_dst}

    return make


def _gather(
    ids: list[int], shape: tuple[int, ...] = SMALL, *, cache_dtype: Any = None
) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        cache = normal(rng, np.dtype(cache_dtype or dtype), *shape)
        return {"cache": cache, "block_ids": np.array(ids, np.int64)}

    return make


def _scatter(ids: list[int], *, cache_dtype: Any = None) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        blocks = normal(rng, np.dtype(cache_dtype or dtype), len(ids), *SMALL[1:])
        return {"blocks": blocks} | _gather(ids, cache_dtype=cache_dtype)(rng, dtype)

    return make


CASES = (
    *rows(
        {
            "one": _write([0], (1, 1, 1, 1)),
            "scattered": _write([3, 17, 4, 0, 19, 8]),
            "skipped": _write([6, -1, 2, -1]),
            "all_skipped": _write([-1, -1]),
            "smollm_heads": _write([3], (2, 2, 3, 64)),
            "empty": _write([]),
        },
        "reshape_and_cache",
        op_class="exact",
        mutates=("k_cache", "v_cache"),
        takes_out=False,
    ),
    *rows(
        {
            "bf16_cache": _write([5, -1, 11], cache=ml_dtypes.bfloat16),
            "f16_cache": _write([5, -1, 11], cache=np.float16),
            "f16_saturates": _write([5, -1, 11], cache=np.float16, scale=6e4),
            "fp8_cache": _write([5, -1, 11], cache=_FP8),
            "fp8_saturates": _write([5, -1, 11], cache=_FP8, scale=300.0),
        },
        "reshape_and_cache",
        dtypes=_F32,
        op_class="exact",
        mutates=("k_cache", "v_cache"),
        takes_out=False,
    ),
    *rows(
        {
            "one": _rotate([0], (1, 1, 2), 2),
            "odd": _rotate([3, 17, 4, 0, 19], (3, 1, 34), 34),
            "partial": _rotate([7, 2, 12], (4, 2, 16), 6, weight=None),
            "partial_odd_head": _rotate([7, 2, 12], (5, 2, 7), 4),
            "without_norm": _rotate([9, 1, 18], (4, 2, 10), 10, is_normed=False),
            "skipped": _rotate([6, -1, 2, -1], (6, 3, 8), 8),
            "no_dims": _rotate([1, 5], (4, 2, 8), 0),
            "no_kv_heads": _rotate([1, 5], (4, 0, 8), 8),
            "empty": _rotate([], (4, 2, 16), 16),
        },
        "rotate_and_cache",
        op_class="rope",
        mutates=("q", "k", "k_cache", "v_cache"),
        takes_out=False,
    ),
    *rows(
        {
            "head_64": _rotate([11, -1], (9, 3, 64), 64),
            "head_128": _rotate([13, 2, -1], (16, 8, 128), 128),
            "head_256": _rotate([13, 2, -1], (4, 2, 256), 64),
        },
        "rotate_and_cache",
        op_class="rope",
        mutates=("q", "k", "k_cache", "v_cache"),
        takes_out=False,
        has_golden=False,
    ),
    *rows(
        {"fp8_cache": _rotate([5, -1, 11], (4, 2, 6), 6, cache=_FP8)},
        "rotate_and_cache",
        dtypes=_F32,
        op_class="rope",
        mutates=("q", "k", "k_cache", "v_cache"),
        takes_out=False,
        has_golden=False,
    ),
    *rows(
        {"f16_cache": _rotate([5, -1, 11], (4, 2, 6), 6, cache=np.float16)},
        "rotate_and_cache",
        dtypes=("bf16",),
        op_class="rope",
        mutates=("q", "k", "k_cache", "v_cache"),
        takes_out=False,
        has_golden=False,
    ),
    *rows(
        {"one": _copy([(2, 0)]), "fan_out": _copy([(1, 4), (1, 0), (3, 2)]), "empty": _copy([])},
        "copy_blocks",
        op_class="exact",
        mutates=("k_cache", "v_cache"),
        takes_out=False,
    ),
    *rows(
        {
            "one": _gather([0], (1, 1, 1, 1)),
            "any_order": _gather([4, 0, 2]),
            "repeated": _gather([3, 3]),
            "empty": _gather([]),
        },
        "gather_blocks",
        op_class="exact",
    ),
    *rows(
        {"one": _scatter([2]), "any_order": _scatter([4, 0, 3]), "empty": _scatter([])},
        "scatter_blocks",
        op_class="exact",
        mutates=("cache",),
        takes_out=False,
    ),
    *rows(
        {"fp8": _copy([(1, 4), (3, 2)], _FP8)},
        "copy_blocks",
        op_class="exact",
        dtypes=_F32,
        mutates=("k_cache", "v_cache"),
        takes_out=False,
        has_golden=False,
    ),
    *rows(
        {"fp8": _gather([4, 0, 2], cache_dtype=_FP8)},
        "gather_blocks",
        op_class="exact",
        dtypes=_F32,
        has_golden=False,
    ),
    *rows(
        {"fp8": _scatter([4, 0, 3], cache_dtype=_FP8)},
        "scatter_blocks",
        op_class="exact",
        dtypes=_F32,
        mutates=("cache",),
        takes_out=False,
        has_golden=False,
    ),
)
