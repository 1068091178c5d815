"""The paged KV cache: writes of new tokens, and copies of whole blocks.

Dims: T tokens, N query heads, Nk KV heads, D head size, R rotated dims, P positions of a table, B
blocks in the pool, S tokens in a block, M blocks named by the call. Slot ``s`` is row ``s % S`` of
block ``s // S``. A cache may be a view (a layer of a larger array); it is never reshaped, so a
write always reaches it.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.norm import RMS_NORM
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.ops.rope import ROTARY_EMBEDDING, check_rotary
from pyvt.tensor.dtype import F16, FLOATS, FP8_E4M3, I64, KV_FLOATS

RESHAPE_AND_CACHE = declare("reshape_and_cache", num_outputs=2)
ROTATE_AND_CACHE = declare(
    "rotate_and_cache",
    num_outputs=4,
    composite=("rms_norm", "rotary_embedding", "reshape_and_cache"),
)
COPY_BLOCKS = declare("copy_blocks", num_outputs=2)
GATHER_BLOCKS = declare("gather_blocks")
SCATTER_BLOCKS = declare("scatter_blocks")

FP8_MAX = 448.0
F16_MAX = 65504.0
_CACHE = "B S Nk D"


def reshape_and_cache(
    k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array
) -> None:
    """Write the keys and values of new tokens into their slots of the cache.

    ``k_cache[slot // S, slot % S] = k[t]`` for every token with ``slot = slot_mapping[t] >= 0``,
    rounded once to the dtype of the cache; the same for ``v``. A cache of fp8 holds what is beyond
    its range as its largest number, ±448, infinities too; one of f16 holds a finite number beyond
    its range as ±65504, and an infinity as it is.

    Args:
        k: ``[T, Nk, D]`` f64|f32|bf16|f16.
        v: ``[T, Nk, D]``, the dtype of ``k``.
        k_cache: ``[B, S, Nk, D]`` f64|f32|bf16|f16|fp8_e4m3; overwritten at the slots.
        v_cache: ``[B, S, Nk, D]``, the dtype of ``k_cache``; overwritten at the slots.
        slot_mapping: ``[T]`` i64; −1 skips a token. Two tokens never share a slot.

    Raises:
        ShapeError: also where a slot is outside the cache.
        DTypeError.

    Source: vLLM ``reshape_and_cache_flash``.
    """
    check = Check("reshape_and_cache")
    check.tensor("k", k, "T Nk D", FLOATS)
    _check_write(check, k, v, k_cache, v_cache, slot_mapping)
    RESHAPE_AND_CACHE(k_cache, v_cache, k, v, slot_mapping)


@RESHAPE_AND_CACHE.reference
def _reshape_and_cache(
    k_cache: Array, v_cache: Array, k: Array, v: Array, slot_mapping: Array
) -> None:
    tokens = np.flatnonzero(slot_mapping >= 0)
    block_ids, offsets = np.divmod(slot_mapping[tokens], k_cache.shape[1])
    for cache, new in ((k_cache, k), (v_cache, v)):
        rounded = np.empty((len(tokens), *new.shape[1:]), cache.dtype)
        rows = new[tokens]
        wide = rows.astype(accum_dtype(rows), copy=False)
        if cache.dtype == FP8_E4M3.numpy:
            rows = np.clip(wide, -FP8_MAX, FP8_MAX)
        elif cache.dtype == F16.numpy:
            rows = np.where(np.isinf(wide), wide, np.clip(wide, -F16_MAX, F16_MAX))
        round_into(rounded, rows)
        cache[block_ids, offsets] = rounded


def rotate_and_cache(
    q: Array,
    k: Array,
    v: Array,
    q_weight: Array | None,
    k_weight: Array | None,
    eps: float,
    positions: Array,
    cos_sin: Array,
    k_cache: Array,
    v_cache: Array,
    slot_mapping: Array,
) -> None:
    """All of a layer between its projection of q, k and v and its attention, in place.

    Heads are normed where there are weights, ``q = rms_norm(q, q_weight, eps)`` and the same for
    ``k``, then ``rotary_embedding(q, k, positions, cos_sin)``, then
    ``reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)``; rounded behind each of them.

    Args:
        q: ``[T, N, D]`` f64|f32|bf16|f16; overwritten.
        k: ``[T, Nk, D]``, the dtype of ``q``; overwritten. May lie beside ``q`` in one buffer.
        v: ``[T, Nk, D]``, the dtype of ``q``.
        q_weight, k_weight: ``[D]`` f64|f32|bf16|f16, of the norms; both or none.
        eps: of the norms, at least 0.
        positions: ``[T]`` i64, each in ``[0, P)``.
        cos_sin: ``[P, R]`` f64|f32|bf16|f16, a table of ``rope_cos_sin``.
        k_cache, v_cache, slot_mapping: as in ``reshape_and_cache``.

    Raises:
        ShapeError: also for a position outside the table or a slot outside the cache.
        DTypeError.

    Source: transformers ``Qwen3Attention.forward``; vLLM ``fused_qk_norm_rope``.
    """
    check = Check("rotate_and_cache")
    check_rotary(check, q, k, positions, cos_sin)
    check.optional("q_weight", q_weight, "D", FLOATS)
    check.optional("k_weight", k_weight, "D", FLOATS)
    if (q_weight is None) != (k_weight is None):
        raise check.fail("k_weight", "both weights or none", "one of them")
    check.number("eps", eps, low=0)
    _check_write(check, k, v, k_cache, v_cache, slot_mapping)
    caches, new = (k_cache, v_cache), (v, q_weight, k_weight)
    ROTATE_AND_CACHE(q, k, *caches, *new, positions, cos_sin, slot_mapping, eps)


@ROTATE_AND_CACHE.reference
def _rotate_and_cache(
    q: Array,
    k: Array,
    k_cache: Array,
    v_cache: Array,
    v: Array,
    q_weight: Array | None,
    k_weight: Array | None,
    positions: Array,
    cos_sin: Array,
    slot_mapping: Array,
    eps: float,
) -> None:
    for heads, weight in ((q, q_weight), (k, k_weight)):
        if weight is not None:
            RMS_NORM.reference_kernel(heads, heads, weight, eps)
    ROTARY_EMBEDDING.reference_kernel(q, k, positions, cos_sin)
    _reshape_and_cache(k_cache, v_cache, k, v, slot_mapping)


def copy_blocks(k_cache: Array, v_cache: Array, src_dst: Array) -> None:
    """Copy whole blocks inside the cache: ``cache[dst] = cache[src]`` for both caches.

    Args:
        k_cache: ``[B, S, Nk, D]`` f64|f32|bf16|f16|fp8_e4m3; overwritten at the destinations.
        v_cache: ``[B, S, Nk, D]``, the dtype of ``k_cache``; overwritten at the destinations.
        src_dst: ``[M, 2]`` i64, pairs of block ids. A destination occurs once and is never a
            source, so that the order of the copies does not matter.

    Raises:
        ShapeError: also where a block is outside the cache or the order of copies would matter.
        DTypeError.

    Source: vLLM ``copy_blocks``.
    """
    check = Check("copy_blocks")
    _check_caches(check, k_cache, v_cache)
    check.tensor("src_dst", src_dst, "M 2", (I64,))
    check.index("src_dst", src_dst, check.dims["B"])
    if isinstance(src_dst, np.ndarray):
        _check_distinct(check, "src_dst", src_dst[:, 1])
        both = np.intersect1d(src_dst[:, 0], src_dst[:, 1])
        if both.size:
            raise check.fail("src_dst", "no block that is source and destination", both.tolist())
    COPY_BLOCKS(k_cache, v_cache, src_dst)


@COPY_BLOCKS.reference
def _copy_blocks(k_cache: Array, v_cache: Array, src_dst: Array) -> None:
    src, dst = src_dst[:, 0], src_dst[:, 1]
    k_cache[dst] = k_cache[src]
    v_cache[dst] = v_cache[src]


def gather_blocks(cache: Array, block_ids: Array, *, out: Array | None = None) -> Array:
    """Copy whole blocks of one cache into a compact array: ``out[m] = cache[block_ids[m]]``.

    Args:
        cache: ``[B, S, Nk, D]`` f64|f32|bf16|f16|fp8_e4m3, keys or values.
        block_ids: ``[M]`` i64; a block may occur twice.
        out: ``[M, S, Nk, D]``, the dtype of ``cache``; shares no memory with it.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a block is outside the cache.
        DTypeError.

    Source: vLLM ``swap_blocks``.
    """
    check = Check("gather_blocks")
    check.tensor("cache", cache, _CACHE, KV_FLOATS)
    check.tensor("block_ids", block_ids, "M", (I64,))
    check.index("block_ids", block_ids, check.dims["B"])
    out = check.output(out, (check.dims["M"], *cache.shape[1:]), cache.dtype)
    check.disjoint("out", out, cache=cache)
    GATHER_BLOCKS(out, cache, block_ids)
    return out


@GATHER_BLOCKS.reference
def _gather_blocks(out: Array, cache: Array, block_ids: Array) -> None:
    out[...] = cache[block_ids]


def scatter_blocks(blocks: Array, cache: Array, block_ids: Array) -> None:
    """Copy a compact array of blocks into one cache: ``cache[block_ids[m]] = blocks[m]``.

    Args:
        blocks: ``[M, S, Nk, D]``, the dtype of ``cache``.
        cache: ``[B, S, Nk, D]``, a dtype of ``gather_blocks``; overwritten at the blocks;
            shares no memory with ``blocks``.
        block_ids: ``[M]`` i64, each once.

    Raises:
        ShapeError: also where a block is outside the cache or occurs twice.
        DTypeError.

    Source: vLLM ``swap_blocks``.
    """
    check = Check("scatter_blocks")
    check.tensor("cache", cache, _CACHE, KV_FLOATS)
    check.tensor("blocks", blocks, "M S Nk D", KV_FLOATS)
    check.same_dtype("blocks", blocks, "cache", cache)
    check.writeable("cache", cache)
    check.disjoint("cache", cache, blocks=blocks)
    check.tensor("block_ids", block_ids, "M", (I64,))
    check.index("block_ids", block_ids, check.dims["B"])
    if isinstance(block_ids, np.ndarray):
        _check_distinct(check, "block_ids", block_ids)
    SCATTER_BLOCKS(cache, blocks, block_ids)


@SCATTER_BLOCKS.reference
def _scatter_blocks(cache: Array, blocks: Array, block_ids: Array) -> None:
    cache[block_ids] = blocks


def _check_write(
    check: Check, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array
) -> None:
    check.tensor("v", v, "T Nk D", FLOATS)
    check.same_dtype("v", v, "k", k)
    _check_caches(check, k_cache, v_cache)
    check.tensor("slot_mapping", slot_mapping, "T", (I64,))
    check.index("slot_mapping", slot_mapping, check.dims["B"] * check.dims["S"], low=-1)


def _check_caches(check: Check, k_cache: Array, v_cache: Array) -> None:
    check.tensor("k_cache", k_cache, _CACHE, KV_FLOATS)
    check.tensor("v_cache", v_cache, _CACHE, KV_FLOATS)
    check.same_dtype("v_cache", v_cache, "k_cache", k_cache)
    check.writeable("k_cache", k_cache)
    check.writeable("v_cache", v_cache)
    check.apart("v_cache", v_cache, "k_cache", k_cache)


def _check_distinct(check: Check, name: str, block_ids: Array) -> None:
    ids, counts = np.unique(block_ids, return_counts=True)
    if ids.size < block_ids.size:
        raise check.fail(name, "every destination once", ids[counts > 1].tolist())
