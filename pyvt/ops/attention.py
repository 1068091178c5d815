"""Attention over the paged KV cache, prefill and decode alike, and the merge of two results.

Dims: T tokens of all requests, R requests, N query heads, Nk KV heads, D head size, B blocks in the
pool, S tokens in a block, W entries of a block table. Query head ``n`` reads KV head
``n // (N / Nk)``.

The queries of request ``r`` are rows ``cu_seqlens_q[r]`` to ``cu_seqlens_q[r + 1]``. They are the
last of its ``seq_lens[r]`` cached tokens, so their keys and values are already in the cache.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.mathutil import cdiv
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import F32, F64, FLOATS, I32, KV_FLOATS

PAGED_ATTENTION = declare("paged_attention", num_outputs=2)
MERGE_ATTN_STATES = declare("merge_attn_states", num_outputs=2)

# Scores that the reference holds at a time: 8 MB in f32.
_MAX_TILE_SCORES = 1 << 21


def paged_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    seq_lens: Array,
    cu_seqlens_q: Array,
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Causal attention of the new tokens of every request over its cached tokens.

    A query at position ``p`` sees the keys ``j`` with ``p − window < j <= p``:
    ``out = softmax(cap(q · k_j · scale)) · v_j``, where ``cap(x) = soft_cap · tanh(x / soft_cap)``.

    Args:
        q: ``[T, N, D]`` f64|f32|bf16|f16; N is a multiple of Nk.
        k_cache: ``[B, S, Nk, D]`` f64|f32|bf16|f16|fp8_e4m3.
        v_cache: ``[B, S, Nk, D]``, the dtype of ``k_cache``.
        block_tables: ``[R, W]`` i32; entry ``i`` holds the tokens from ``i · S`` on. Entries past
            ``seq_lens`` or wholly before the window are not read and may hold anything.
        seq_lens: ``[R]`` i32, tokens of a request with the new ones.
        cu_seqlens_q: ``[R + 1]`` i32, from 0 to T; a request may have no query.
        scale: factor of the scores, as a rule ``1 / sqrt(D)``.
        window: number of keys that a query sees, itself included; None is all.
        soft_cap: bound of the scores; None is none.
        out: ``[T, N, D]``, the dtype of ``q``; shares no memory with the inputs.
        lse: ``[T, N]`` f32, f64 where an input is f64; where given, it is overwritten with the log
            of the softmax's denominator, for ``merge_attn_states``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where an index array contradicts T, the block table or the pool.
        DTypeError.

    Source: vLLM ``flash_attn_varlen_func``; Kwon et al. 2023, arXiv:2309.06180; soft cap: Gemma 2,
    arXiv:2408.00118.
    """
    check = Check("paged_attention")
    _check_tensors(check, q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
    _check_settings(check, scale, window, soft_cap)
    _check_indices(check, block_tables, seq_lens, cu_seqlens_q, window)
    out = check.output(out, q.shape, q.dtype)
    check.disjoint("out", out, q=q, k_cache=k_cache, v_cache=v_cache)
    if lse is not None:
        check.output(lse, q.shape[:2], accum_dtype(q, k_cache), "lse")
        check.disjoint("lse", lse, out=out, q=q, k_cache=k_cache, v_cache=v_cache)
    inputs = (q, k_cache, v_cache, block_tables, seq_lens, cu_seqlens_q)
    PAGED_ATTENTION(out, lse, *inputs, scale, window, soft_cap)
    return out


def _check_tensors(
    check: Check,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    seq_lens: Array,
    cu_seqlens_q: Array,
) -> None:
    check.tensor("q", q, "T N D", FLOATS)
    check.tensor("k_cache", k_cache, "B S Nk D", KV_FLOATS)
    check.tensor("v_cache", v_cache, "B S Nk D", KV_FLOATS)
    check.same_dtype("v_cache", v_cache, "k_cache", k_cache)
    check.tensor("block_tables", block_tables, "R W", (I32,))
    check.tensor("seq_lens", seq_lens, "R", (I32,))
    check.dims["R+1"] = check.dims["R"] + 1
    check.tensor("cu_seqlens_q", cu_seqlens_q, "R+1", (I32,))
    if check.dims["Nk"] == 0 or check.dims["D"] == 0:
        raise check.fail("k_cache", "at least one head of at least one dim", k_cache.shape)
    if check.dims["N"] % check.dims["Nk"]:
        raise check.fail("q", f"N a multiple of Nk={check.dims['Nk']}", check.dims["N"])


def _check_settings(check: Check, scale: float, window: int | None, soft_cap: float | None) -> None:
    check.number("scale", scale)
    if window is not None:
        check.integer("window", window, low=1)
    if soft_cap is not None:
        check.number("soft_cap", soft_cap)
        if not 0 < soft_cap < np.inf:
            raise check.fail("soft_cap", "None or more than 0", soft_cap)


def _check_indices(
    check: Check, block_tables: Array, seq_lens: Array, cu_seqlens_q: Array, window: int | None
) -> None:
    """Check the values of index arrays on the host, so that no kernel reads outside the pool."""
    if not isinstance(seq_lens, np.ndarray):
        return
    num_tokens, block_size = check.dims["T"], check.dims["S"]
    max_seq_len = check.dims["W"] * block_size
    if cu_seqlens_q[0] != 0 or cu_seqlens_q[-1] != num_tokens:
        ends = (int(cu_seqlens_q[0]), int(cu_seqlens_q[-1]))
        raise check.fail("cu_seqlens_q", f"values from 0 to T={num_tokens}", ends)
    query_lens = np.diff(cu_seqlens_q)
    if (query_lens < 0).any():
        raise check.fail("cu_seqlens_q", "values that do not fall", cu_seqlens_q.tolist())
    if (seq_lens < query_lens).any():
        expected = f"at least the numbers of queries {query_lens.tolist()}"
        raise check.fail("seq_lens", expected, seq_lens.tolist())
    if (seq_lens > max_seq_len).any():
        expected = f"at most {max_seq_len}, the tokens of a block table"
        raise check.fail("seq_lens", expected, int(seq_lens.max()))
    starts = np.arange(check.dims["W"]) * block_size
    is_read = (starts < seq_lens[:, None]) & (query_lens > 0)[:, None]
    if window is not None:
        is_read &= starts + block_size > (seq_lens - query_lens - window + 1)[:, None]
    check.index("block_tables", block_tables[is_read], check.dims["B"])


@PAGED_ATTENTION.reference
def _paged_attention(
    out: Array,
    lse: Array | None,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    seq_lens: Array,
    cu_seqlens_q: Array,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    accum = accum_dtype(q, k_cache)
    for r, (start, stop) in enumerate(pairwise(cu_seqlens_q.tolist())):
        if start == stop:
            continue
        seq_len = int(seq_lens[r])
        offset = seq_len - stop  # position of row t is t + offset
        low = _first_key(start + offset, window)
        k = _gather(k_cache, block_tables[r], low, seq_len, accum)
        v = _gather(v_cache, block_tables[r], low, seq_len, accum)
        num_rows = max(1, _MAX_TILE_SCORES // (q.shape[1] * (seq_len - low)))
        for tile_start in range(start, stop, num_rows):
            rows = slice(tile_start, min(tile_start + num_rows, stop))
            positions = np.arange(rows.start, rows.stop) + offset
            keys = np.arange(_first_key(int(positions[0]), window), int(positions[-1]) + 1)
            seen = slice(int(keys[0]) - low, int(keys[-1]) + 1 - low)
            scores = _scores(q[rows].astype(accum), k[seen], scale, soft_cap)
            _hide(scores, positions, keys, window)
            tile_lse = _softmax_times(out[rows], scores, v[seen])
            if lse is not None:
                lse[rows] = tile_lse


def _first_key(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _gather(cache: Array, block_table: Array, low: int, high: int, accum: "np.dtype[Any]") -> Array:
    """Return the cached tokens ``low`` to ``high`` of a request as ``[high − low, Nk, D]``."""
    block_size = cache.shape[1]
    first = low // block_size
    blocks = cache[block_table[first : cdiv(high, block_size)]]
    tokens = blocks.reshape(-1, *cache.shape[2:])
    return tokens[low - first * block_size : high - first * block_size].astype(accum, copy=False)


def _scores(q: Array, k: Array, scale: float, soft_cap: float | None) -> Array:
    """Return the capped scores ``[Nk, rows, N / Nk, keys]`` of ``q [rows, N, D]``.

    ``k`` is ``[keys, Nk, D]``.
    """
    num_rows, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    grouped = q.reshape(num_rows, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)
    flat = grouped.reshape(num_kv_heads, num_rows * group, head_dim)
    scores = flat @ k.transpose(1, 2, 0)
    scores *= scale
    if soft_cap is not None:
        scores /= soft_cap
        np.tanh(scores, out=scores)
        scores *= soft_cap
    return scores.reshape(num_kv_heads, num_rows, group, num_keys)


def _hide(scores: Array, positions: Array, keys: Array, window: int | None) -> None:
    """Set the scores of keys that a query may not see to −inf."""
    if len(positions) == 1:
        return  # the keys of one query are cut to what it sees
    hidden = keys > positions[:, None]
    if window is not None:
        hidden |= keys <= positions[:, None] - window
    np.copyto(scores, -np.inf, where=hidden[None, :, None, :])


def _softmax_times(out: Array, scores: Array, v: Array) -> Array:
    """Write ``softmax(scores) · v`` into ``out [rows, N, D]``; return its lse ``[rows, N]``.

    ``scores`` ``[Nk, rows, N / Nk, keys]`` is overwritten; ``v`` is ``[keys, Nk, D]``.
    """
    num_kv_heads, num_rows, group, num_keys = scores.shape
    top = scores.max(axis=-1, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    summed = scores.reshape(num_kv_heads, num_rows * group, num_keys) @ v.transpose(1, 0, 2)
    result = summed.reshape(num_kv_heads, num_rows, group, -1) / total
    round_into(out, result.transpose(1, 0, 2, 3).reshape(out.shape))
    lse: Array = (top + np.log(total)).transpose(1, 0, 2, 3).reshape(out.shape[:2])
    return lse


def merge_attn_states(
    out_a: Array,
    lse_a: Array,
    out_b: Array,
    lse_b: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
) -> Array:
    """Merge the attention of the same queries over two disjoint sets of keys.

    ``out = (out_a · exp(lse_a) + out_b · exp(lse_b)) / (exp(lse_a) + exp(lse_b))``. A set without
    keys has an lse of −inf or +inf; its ``out`` is then not read. Where both sets are empty, the
    result is 0 and its lse −inf.

    Args:
        out_a: ``[T, N, D]`` f64|f32|bf16|f16.
        lse_a: ``[T, N]`` f32|f64.
        out_b: ``[T, N, D]``, the dtype of ``out_a``.
        lse_b: ``[T, N]``, the dtype of ``lse_a``.
        out: ``[T, N, D]``, the dtype of ``out_a``; may be ``out_a`` or ``out_b``.
        lse: ``[T, N]``, the dtype of ``lse_a``; where it is given, it is overwritten with the lse
            of both sets; may be ``lse_a`` or ``lse_b``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Ye et al. 2025, arXiv:2501.01005, section 2.2; vLLM ``merge_attn_states``.
    """
    check = Check("merge_attn_states")
    check.tensor("out_a", out_a, "T N D", FLOATS)
    check.tensor("lse_a", lse_a, "T N", (F32, F64))
    check.tensor("out_b", out_b, "T N D", FLOATS)
    check.tensor("lse_b", lse_b, "T N", (F32, F64))
    check.same_dtype("out_b", out_b, "out_a", out_a)
    check.same_dtype("lse_b", lse_b, "lse_a", lse_a)
    out = check.output(out, out_a.shape, out_a.dtype)
    if lse is not None:
        check.output(lse, lse_a.shape, lse_a.dtype, "lse")
    MERGE_ATTN_STATES(out, lse, out_a, lse_a, out_b, lse_b)
    return out


@MERGE_ATTN_STATES.reference
def _merge_attn_states(
    out: Array, lse: Array | None, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array
) -> None:
    accum = accum_dtype(out_a, lse_a)
    total = np.zeros(out_a.shape, accum)
    lses = [np.where(np.isposinf(x), -np.inf, x).astype(accum) for x in (lse_a, lse_b)]
    top = np.maximum(*lses)
    shift = np.where(np.isneginf(top), 0, top)
    weights = [np.exp(x - shift) for x in lses]
    denominator = weights[0] + weights[1]
    is_empty = denominator == 0
    denominator[is_empty] = 1
    for part, weight in zip((out_a, out_b), weights, strict=True):
        share = (weight / denominator)[..., None]
        total += np.where(share == 0, 0, part.astype(accum) * share)
    round_into(out, total)
    if lse is not None:
        lse[...] = np.where(is_empty, -np.inf, shift + np.log(denominator))
