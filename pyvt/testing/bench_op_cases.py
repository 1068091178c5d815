"""The calls that ``pyvt bench ops`` times, with what each must move: ops of a step of Qwen3-0.6B,
and those of linear attention in the sizes of Qwen3.6-35B-A3B.

Dims: M rows of activations.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from pyvt import ops
from pyvt.mathutil import cdiv
from pyvt.ops.packed_layouts import LAYOUTS
from pyvt.tensor.dtype import BF16, DTYPES, F32, DType
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.testing.bench_case import Array, BenchCase, Call, packed_weight
from pyvt.testing.bench_limits import loop_of
from pyvt.testing.bench_row_cases import row_cases
from pyvt.testing.bench_sampler_cases import sampler_cases
from pyvt.testing.bench_weight_cases import weight_cases
from pyvt.testing.op_cases.attention import paged_cache

HIDDEN, INNER, N_HEADS, N_KV_HEADS, HEAD_DIM = 1024, 3072, 16, 8, 128
# Key heads, value heads, size of both, taps of the convolution.
N_GDN_KEYS, N_GDN_VALUES, GDN_DIM, N_TAPS = 16, 32, 128, 4
N_CHANNELS = (2 * N_GDN_KEYS + N_GDN_VALUES) * GDN_DIM
# Weights of a decode step do not lie in a cache; copies that a case goes through in turn have so
# many bytes in all.
COLD_BYTES = 128 << 20
# Rows from which a product is read again from caches anyway.
_MAX_COLD_ROWS = 16


def bench_cases() -> Iterator[BenchCase]:
    """Yield all cases."""
    for name in LAYOUTS:
        for num_rows in (1, 4, 16, 256):
            yield _product(name, num_rows)
    for num_rows in (1, 4, 16, 256):
        yield _product("bf16", num_rows, BF16)
    for num_reqs, query_len, seq_len in ((1, 1, 128), (1, 1, 512), (16, 1, 512), (1, 512, 512)):
        for kv_dtype in ("f32", "f16", "fp8_e4m3"):
            yield _attention(num_reqs, query_len, seq_len, DTYPES[kv_dtype])
    for num_reqs, query_len in ((1, 1), (16, 1), (1, 256)):
        yield _delta_net(num_reqs, query_len)
        yield _convolution(num_reqs, query_len)
    for num_rows in (1, 256):
        yield from _row_ops(num_rows)
        yield from _gate_ops(num_rows)
        yield from row_cases(num_rows)
    yield from weight_cases()
    for num_rows in (1, 16):
        yield from sampler_cases(num_rows)


def _product(name: str, num_rows: int, of_x: DType = F32) -> BenchCase:
    dtype = DTYPES[name]
    weight_bytes = INNER * dtype.row_bytes(HIDDEN)

    def make(rng: np.random.Generator) -> Call:
        weight = packed_weight(dtype, (INNER, HIDDEN))
        count = cdiv(COLD_BYTES, weight_bytes) if num_rows <= _MAX_COLD_ROWS else 1
        copies = [weight] + [
            PackedTensor(dtype, (INNER, HIDDEN), weight.layout, weight.data.copy())
            for _ in range(count - 1)
        ]
        turns = itertools.cycle(copies)
        x = rng.standard_normal((num_rows, HIDDEN), np.float32).astype(of_x.numpy)
        out = np.empty((num_rows, INNER), of_x.numpy)
        act = "q8" if dtype.is_block and dtype.has_codes else "none"
        return lambda: ops.packed_linear(x, next(turns), act=act, out=out)

    return BenchCase(
        op="packed_linear",
        case=f"{name} {INNER}x{HIDDEN} M={num_rows}" + ("" if of_x is F32 else f" x={of_x}"),
        make=make,
        num_bytes=weight_bytes + of_x.block_bytes * num_rows * (HIDDEN + INNER),
        num_ops=2 * num_rows * HIDDEN * INNER,
        loop=loop_of(name, of_x.name),
    )


def _attention(num_reqs: int, query_len: int, seq_len: int, kv_dtype: DType) -> BenchCase:
    num_tokens = num_reqs * query_len
    num_pairs = num_reqs * sum(range(seq_len - query_len + 1, seq_len + 1))

    def make(rng: np.random.Generator) -> Call:
        assert kv_dtype.numpy is not None, "a cache has a plain dtype"
        cache = paged_cache(rng, kv_dtype.numpy, [seq_len] * num_reqs, (16, N_KV_HEADS, HEAD_DIM))
        q = rng.standard_normal((num_tokens, N_HEADS, HEAD_DIM), np.float32)
        cu_seqlens_q = np.arange(num_reqs + 1, dtype=np.int32) * query_len
        return lambda: ops.paged_attention(
            q, **cache, cu_seqlens_q=cu_seqlens_q.astype(np.int32), scale=HEAD_DIM**-0.5
        )

    return BenchCase(
        op="paged_attention",
        case=f"{kv_dtype.name} {num_reqs} x {query_len} of {seq_len}",
        make=make,
        num_bytes=2 * num_reqs * seq_len * N_KV_HEADS * kv_dtype.row_bytes(HEAD_DIM)
        + 2 * 4 * num_tokens * N_HEADS * HEAD_DIM,
        num_ops=4 * num_pairs * N_HEADS * HEAD_DIM,
        loop="fma_f32",
    )


def _turns(num_reqs: int, query_len: int, num_slots: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the index arrays of calls that go on in place, from other slots each time."""
    cu_seqlens_q = (np.arange(num_reqs + 1) * query_len).astype(np.int32)
    calls = []
    for first in range(0, num_slots - num_reqs + 1, num_reqs):
        slots = np.arange(first, first + num_reqs, dtype=np.int32)
        kept = np.full((num_reqs, query_len), -1, np.int32)
        kept[:, -1] = slots
        calls.append((cu_seqlens_q, slots, kept.ravel()))
    return itertools.cycle(calls)


def _delta_net(num_reqs: int, query_len: int) -> BenchCase:
    num_tokens, head_bytes = num_reqs * query_len, 4 * GDN_DIM * GDN_DIM
    num_slots = cdiv(COLD_BYTES, N_GDN_VALUES * head_bytes)

    def make(rng: np.random.Generator) -> Call:
        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape, np.float32)

        turns = _turns(num_reqs, query_len, num_slots)
        state = np.zeros((num_slots, N_GDN_VALUES, GDN_DIM, GDN_DIM), np.float32)
        q, k = normal(2, num_tokens, N_GDN_KEYS, GDN_DIM)
        v, z = normal(2, num_tokens, N_GDN_VALUES, GDN_DIM)
        a, b = normal(2, num_tokens, N_GDN_VALUES)
        rate, bias = -np.exp(normal(N_GDN_VALUES)), normal(N_GDN_VALUES)
        weight, out = np.ones(GDN_DIM, np.float32), np.empty_like(v)
        return lambda: ops.gated_delta_net(
            q, k, v, z, a, b, rate, bias, weight, 1e-6, state, *next(turns), out=out
        )

    activations = (2 * N_GDN_KEYS + 3 * N_GDN_VALUES) * GDN_DIM
    return BenchCase(
        op="gated_delta_net",
        case=f"{num_reqs} x {query_len}",
        make=make,
        num_bytes=2 * num_reqs * N_GDN_VALUES * head_bytes + 4 * num_tokens * activations,
        # A decay, an update and two sums for each element of a state.
        num_ops=2 * 4 * num_tokens * N_GDN_VALUES * GDN_DIM * GDN_DIM,
        loop="fma_f32",
    )


def _convolution(num_reqs: int, query_len: int) -> BenchCase:
    num_tokens, num_slots = num_reqs * query_len, 64

    def make(rng: np.random.Generator) -> Call:
        turns = _turns(num_reqs, query_len, num_slots)
        x = rng.standard_normal((num_tokens, N_CHANNELS), np.float32)
        weight = rng.standard_normal((N_TAPS, N_CHANNELS), np.float32)
        state = np.zeros((num_slots, N_TAPS - 1, N_CHANNELS), np.float32)
        out = np.empty_like(x)
        return lambda: ops.causal_conv1d(x, weight, state, *next(turns), out=out)

    num_floats = 2 * num_reqs * (N_TAPS - 1) + 2 * num_tokens + N_TAPS
    return BenchCase(
        op="causal_conv1d",
        case=f"{num_reqs} x {query_len}",
        make=make,
        num_bytes=4 * num_floats * N_CHANNELS,
    )


def _gate_ops(num_rows: int) -> Iterator[BenchCase]:
    """Yield the gates and norms of linear attention, f32."""
    heads = (num_rows, N_GDN_VALUES, GDN_DIM)

    def normal(rng: np.random.Generator, *shape: int) -> Array:
        return rng.standard_normal(shape, np.float32)

    def gate(rng: np.random.Generator) -> Call:
        a, b = normal(rng, 2, num_rows, N_GDN_VALUES)
        rate, bias = -np.exp(normal(rng, N_GDN_VALUES)), normal(rng, N_GDN_VALUES)
        return lambda: ops.gdn_gate(a, b, rate, bias)

    def unit(rng: np.random.Generator) -> Call:
        x = normal(rng, *heads)
        return lambda: ops.l2_norm(x, 1e-6)

    def gated_norm(rng: np.random.Generator) -> Call:
        x, z, weight = normal(rng, *heads), normal(rng, *heads), np.ones(GDN_DIM, np.float32)
        return lambda: ops.rms_norm_gated(x, z, weight, 1e-6)

    def gated(rng: np.random.Generator) -> Call:
        x, z = normal(rng, *heads), normal(rng, *heads)
        return lambda: ops.sigmoid_gate(x, z)

    size = N_GDN_VALUES * GDN_DIM
    for op, make, num_floats in (
        ("gdn_gate", gate, 4 * N_GDN_VALUES),
        ("l2_norm", unit, 2 * size),
        ("rms_norm_gated", gated_norm, 3 * size),
        ("sigmoid_gate", gated, 3 * size),
    ):
        yield BenchCase(op=op, case=f"M={num_rows}", make=make, num_bytes=4 * num_rows * num_floats)


def _row_ops(num_rows: int) -> Iterator[BenchCase]:
    """Yield the ops on rows of activations, f32."""

    def normal(rng: np.random.Generator, *shape: int) -> Array:
        return rng.standard_normal((num_rows, *shape), np.float32)

    ones = np.ones(HIDDEN, np.float32)

    def norm(rng: np.random.Generator) -> Call:
        x = normal(rng, HIDDEN)
        return lambda: ops.rms_norm(x, ones, 1e-6)

    def add_norm(rng: np.random.Generator) -> Call:
        x, residual = normal(rng, HIDDEN), normal(rng, HIDDEN)
        return lambda: ops.fused_add_rms_norm(x, residual, ones, 1e-6)

    def swiglu(rng: np.random.Generator) -> Call:
        x = normal(rng, 2 * INNER)
        return lambda: ops.silu_and_mul(x)

    def quantise(rng: np.random.Generator) -> Call:
        x = normal(rng, HIDDEN)
        return lambda: ops.quantize_q8_rows(x)

    def rope(rng: np.random.Generator) -> Call:
        q, k = normal(rng, N_HEADS, HEAD_DIM), normal(rng, N_KV_HEADS, HEAD_DIM)
        table = ops.rope_cos_sin(1e6 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM), 512)
        positions = np.arange(num_rows, dtype=np.int64)
        return lambda: ops.rotary_embedding(q, k, positions, table)

    def write_kv(rng: np.random.Generator) -> Call:
        k, v = normal(rng, N_KV_HEADS, HEAD_DIM), normal(rng, N_KV_HEADS, HEAD_DIM)
        k_cache = np.zeros((cdiv(num_rows, 16), 16, N_KV_HEADS, HEAD_DIM), np.float32)
        v_cache, slots = k_cache.copy(), np.arange(num_rows, dtype=np.int64)
        return lambda: ops.reshape_and_cache(k, v, k_cache, v_cache, slots)

    def turn_and_write(rng: np.random.Generator) -> Call:
        q, k, v = (normal(rng, n, HEAD_DIM) for n in (N_HEADS, N_KV_HEADS, N_KV_HEADS))
        weight = np.ones(HEAD_DIM, np.float32)
        table = ops.rope_cos_sin(1e6 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM), 512)
        k_cache = np.zeros((cdiv(num_rows, 16), 16, N_KV_HEADS, HEAD_DIM), np.float32)
        v_cache, at = k_cache.copy(), np.arange(num_rows, dtype=np.int64)
        return lambda: ops.rotate_and_cache(
            q, k, v, weight, weight, 1e-6, at, table, k_cache, v_cache, at
        )

    heads = (N_HEADS + N_KV_HEADS) * HEAD_DIM
    for op, make, num_floats in (
        ("rms_norm", norm, 2 * HIDDEN),
        ("fused_add_rms_norm", add_norm, 4 * HIDDEN),
        ("silu_and_mul", swiglu, 3 * INNER),
        ("quantize_q8_rows", quantise, HIDDEN + HIDDEN // 4),
        ("rotary_embedding", rope, 2 * heads),
        ("reshape_and_cache", write_kv, 4 * N_KV_HEADS * HEAD_DIM),
        ("rotate_and_cache", turn_and_write, 2 * heads + 3 * N_KV_HEADS * HEAD_DIM),
    ):
        yield BenchCase(op=op, case=f"M={num_rows}", make=make, num_bytes=4 * num_rows * num_floats)
