"""Timed calls of the ops on rows of activations, element by element or block by block."""

from collections.abc import Callable, Iterator

import numpy as np

from pyvt import ops
from pyvt.mathutil import cdiv
from pyvt.testing.bench_case import Array, BenchCase, Call

# Sizes of Qwen3-0.6B, and tokens of a block of keys and values.
HIDDEN, INNER, N_HEADS, N_KV_HEADS, HEAD_DIM = 1024, 3072, 16, 8, 128
BLOCK_SIZE = 16
# Key heads, value heads, size of both in the linear attention of Qwen3.6-35B-A3B.
N_GDN_KEYS, N_GDN_VALUES, GDN_DIM = 16, 32, 128

Make = Callable[[Array, Array], Call]

# Of x and y [M, INNER], and how many arrays of that shape are read and written.
_ELEMENTWISE: dict[str, tuple[Make, float]] = {
    "add": (lambda x, y: lambda: ops.add(x, y), 3),
    "mul": (lambda x, y: lambda: ops.mul(x, y), 3),
    "scale": (lambda x, y: lambda: ops.scale(x, 0.5), 2),
    "cast": (lambda x, y: lambda: ops.cast(x, "bf16"), 1.5),
    "soft_cap": (lambda x, y: lambda: ops.soft_cap(x, 30.0), 2),
    "relu": (lambda x, y: lambda: ops.relu(x), 2),
    "sigmoid": (lambda x, y: lambda: ops.sigmoid(x), 2),
    "silu": (lambda x, y: lambda: ops.silu(x), 2),
    "gelu": (lambda x, y: lambda: ops.gelu(x), 2),
    "gelu_and_mul": (lambda x, y: lambda: ops.gelu_and_mul(x), 1.5),
}


def row_cases(num_rows: int) -> Iterator[BenchCase]:
    """Yield the ops on so many rows, f32."""
    for op, (make, num_arrays) in _ELEMENTWISE.items():
        yield BenchCase(
            op=op,
            case=f"M={num_rows}",
            make=_on_rows(make, num_rows),
            num_bytes=int(4 * num_rows * INNER * num_arrays),
        )
    kv_bytes = 2 * 4 * num_rows * N_KV_HEADS * HEAD_DIM
    for op, maker, num_bytes in (
        ("take_columns", _take_columns, 2 * 4 * num_rows * INNER),
        ("merge_attn_states", _merge_attn_states, 3 * 4 * num_rows * N_HEADS * (HEAD_DIM + 1)),
        ("copy_blocks", _copy_blocks, 2 * kv_bytes),
        ("gather_blocks", _gather_blocks, kv_bytes),
        ("scatter_blocks", _scatter_blocks, kv_bytes),
        ("gated_delta_rule", _gated_delta_rule, _rule_bytes(num_rows)),
    ):
        yield BenchCase(op=op, case=f"M={num_rows}", make=maker(num_rows), num_bytes=num_bytes)


def _on_rows(make: Make, num_rows: int) -> Callable[[np.random.Generator], Call]:
    return lambda rng: make(*rng.standard_normal((2, num_rows, INNER), np.float32))


def _take_columns(num_rows: int) -> Callable[[np.random.Generator], Call]:
    def make(rng: np.random.Generator) -> Call:
        x = rng.standard_normal((num_rows, INNER), np.float32)
        columns = rng.permutation(INNER).astype(np.int32)
        return lambda: ops.take_columns(x, columns)

    return make


def _merge_attn_states(num_rows: int) -> Callable[[np.random.Generator], Call]:
    def make(rng: np.random.Generator) -> Call:
        out_a, out_b = rng.standard_normal((2, num_rows, N_HEADS, HEAD_DIM), np.float32)
        lse_a, lse_b = rng.standard_normal((2, num_rows, N_HEADS), np.float32)
        return lambda: ops.merge_attn_states(out_a, lse_a, out_b, lse_b)

    return make


def _blocks(num_rows: int) -> tuple[int, tuple[int, int, int]]:
    """Return the number of blocks of so many tokens, and the shape of one."""
    return cdiv(num_rows, BLOCK_SIZE), (min(num_rows, BLOCK_SIZE), N_KV_HEADS, HEAD_DIM)


def _copy_blocks(num_rows: int) -> Callable[[np.random.Generator], Call]:
    def make(rng: np.random.Generator) -> Call:
        count, shape = _blocks(num_rows)
        k_cache, v_cache = rng.standard_normal((2, 2 * count, *shape), np.float32)
        src_dst = np.stack([np.arange(count), np.arange(count, 2 * count)], axis=1)
        return lambda: ops.copy_blocks(k_cache, v_cache, src_dst)

    return make


def _gather_blocks(num_rows: int) -> Callable[[np.random.Generator], Call]:
    def make(rng: np.random.Generator) -> Call:
        count, shape = _blocks(num_rows)
        cache, ids = rng.standard_normal((count, *shape), np.float32), rng.permutation(count)
        return lambda: ops.gather_blocks(cache, ids)

    return make


def _scatter_blocks(num_rows: int) -> Callable[[np.random.Generator], Call]:
    def make(rng: np.random.Generator) -> Call:
        count, shape = _blocks(num_rows)
        blocks, cache = rng.standard_normal((2, count, *shape), np.float32)
        ids = rng.permutation(count)
        return lambda: ops.scatter_blocks(blocks, cache, ids)

    return make


def _rule_bytes(num_rows: int) -> int:
    """The state, read and written, and the activations of one request."""
    activations = 2 * (N_GDN_KEYS + N_GDN_VALUES) * GDN_DIM
    return 2 * 4 * N_GDN_VALUES * GDN_DIM * GDN_DIM + 4 * num_rows * activations


def _gated_delta_rule(num_rows: int) -> Callable[[np.random.Generator], Call]:
    """One request, going on in place."""

    def make(rng: np.random.Generator) -> Call:
        q, k = rng.standard_normal((2, num_rows, N_GDN_KEYS, GDN_DIM), np.float32) / GDN_DIM**0.5
        v = rng.standard_normal((num_rows, N_GDN_VALUES, GDN_DIM), np.float32)
        g = -rng.random((num_rows, N_GDN_VALUES), np.float32)
        beta = rng.random((num_rows, N_GDN_VALUES), np.float32)
        state = np.zeros((1, N_GDN_VALUES, GDN_DIM, GDN_DIM), np.float32)
        slots = np.full(num_rows, -1, np.int32)
        slots[-1] = 0
        cu_seqlens_q = np.array([0, num_rows], np.int32)
        initial = np.zeros(1, np.int32)
        return lambda: ops.gated_delta_rule(
            q, k, v, g, beta, state, cu_seqlens_q, initial, slots, GDN_DIM**-0.5
        )

    return make
