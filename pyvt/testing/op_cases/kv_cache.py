"""Cases of the kv_cache family."""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

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
