"""Timed calls of the ops on weights other than the products of packed ones: experts, lookups, and
products with weights as files have them.
"""

from collections.abc import Iterator

import numpy as np

from pyvt import ops
from pyvt.tensor.dtype import DTYPES, F32
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.bench_case import BenchCase, Call, packed_weight
from pyvt.testing.bench_limits import loop_of
from pyvt.testing.shape_models import random_tensor

# A quarter of the experts of a layer of Qwen3-30B-A3B.
HIDDEN, INNER, N_EXPERTS, TOP_K, N_ROUTED = 2048, 768, 32, 8, 128
# A layer of Qwen3-0.6B, and a part of its vocabulary.
DENSE_HIDDEN, DENSE_INNER, VOCAB = 1024, 3072, 8192


def weight_cases() -> Iterator[BenchCase]:
    """Yield all cases."""
    for num_rows in (1, 16, 256):
        yield _router(num_rows)
        for name in ("bf16", "q8_0", "q4_k"):
            yield _experts(name, num_rows)
        yield _shared(num_rows)
    for num_rows in (1, 256):
        for name in ("bf16", "q4_k"):
            yield _lookup("packed_embedding", name, num_rows)
        yield _lookup("embedding", "bf16", num_rows)
        yield _lookup("quant_embedding", "q4_k", num_rows)
        yield _unpacked_product("linear", "bf16", num_rows)
        yield _unpacked_product("quant_linear", "q4_k", num_rows)


def _router(num_rows: int) -> BenchCase:
    def make(rng: np.random.Generator) -> Call:
        logits = rng.standard_normal((num_rows, N_ROUTED), np.float32)
        return lambda: ops.router_topk(logits, TOP_K, renormalize=True)

    return BenchCase(
        op="router_topk",
        case=f"{TOP_K} of {N_ROUTED} M={num_rows}",
        make=make,
        num_bytes=4 * num_rows * (N_ROUTED + 2 * TOP_K),
    )


def _experts(name: str, num_rows: int) -> BenchCase:
    dtype = DTYPES[name]
    num_read = min(num_rows * TOP_K, N_EXPERTS)
    one = 2 * INNER * dtype.row_bytes(HIDDEN) + HIDDEN * dtype.row_bytes(INNER)

    def make(rng: np.random.Generator) -> Call:
        gate, up = (packed_weight(dtype, (N_EXPERTS, INNER, HIDDEN)) for _ in range(2))
        down = packed_weight(dtype, (N_EXPERTS, HIDDEN, INNER))
        x = rng.standard_normal((num_rows, HIDDEN), np.float32)
        order = rng.permuted(np.tile(np.arange(N_EXPERTS, dtype=np.int32), (num_rows, 1)), axis=1)
        ids = order[:, :TOP_K].copy()
        shares = np.full((num_rows, TOP_K), 1 / TOP_K, np.float32)
        act = "q8" if dtype.is_block else "none"
        return lambda: ops.fused_experts(x, ids, shares, gate, up, down, act=act)

    return BenchCase(
        op="fused_experts",
        case=f"{name} {TOP_K} of {N_EXPERTS} of {INNER}x{HIDDEN} M={num_rows}",
        make=make,
        num_bytes=num_read * one + 2 * 4 * num_rows * HIDDEN,
        num_ops=2 * num_rows * TOP_K * 3 * HIDDEN * INNER,
        loop=loop_of(name),
    )


def _shared(num_rows: int) -> BenchCase:
    def make(rng: np.random.Generator) -> Call:
        routed, shared = rng.standard_normal((2, num_rows, HIDDEN), np.float32)
        gate = rng.standard_normal((num_rows, 1), np.float32)
        return lambda: ops.add_shared_expert(routed, shared, gate)

    return BenchCase(
        op="add_shared_expert",
        case=f"M={num_rows}",
        make=make,
        num_bytes=3 * 4 * num_rows * HIDDEN,
    )


def _lookup(op: str, name: str, num_rows: int) -> BenchCase:
    dtype = DTYPES[name]

    def make(rng: np.random.Generator) -> Call:
        ids = rng.integers(0, VOCAB, num_rows)
        if op == "packed_embedding":
            packed = packed_weight(dtype, (VOCAB, DENSE_HIDDEN))
            return lambda: ops.packed_embedding(ids, packed, dtype="f32")
        table = random_tensor("bench", (VOCAB, DENSE_HIDDEN), dtype)
        if isinstance(table, QuantTensor):
            return lambda: ops.quant_embedding(ids, table)
        return lambda: ops.embedding(ids, table, dtype="f32")

    return BenchCase(
        op=op,
        case=f"{name} {VOCAB}x{DENSE_HIDDEN} M={num_rows}",
        make=make,
        num_bytes=num_rows * (dtype.row_bytes(DENSE_HIDDEN) + 4 * DENSE_HIDDEN),
    )


def _unpacked_product(op: str, name: str, num_rows: int) -> BenchCase:
    dtype = DTYPES[name]
    of_x = F32 if dtype.is_block else dtype

    def make(rng: np.random.Generator) -> Call:
        weight = random_tensor("bench", (DENSE_INNER, DENSE_HIDDEN), dtype)
        x = rng.standard_normal((num_rows, DENSE_HIDDEN), np.float32).astype(of_x.numpy)
        if isinstance(weight, QuantTensor):
            return lambda: ops.quant_linear(x, weight, act="q8")
        return lambda: ops.linear(x, weight)

    return BenchCase(
        op=op,
        case=f"{name} {DENSE_INNER}x{DENSE_HIDDEN} M={num_rows}",
        make=make,
        num_bytes=DENSE_INNER * dtype.row_bytes(DENSE_HIDDEN)
        + of_x.block_bytes * num_rows * (DENSE_HIDDEN + DENSE_INNER),
        num_ops=2 * num_rows * DENSE_HIDDEN * DENSE_INNER,
        loop=loop_of(name, of_x.name),
    )
