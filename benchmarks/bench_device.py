"""What a device does against its ceilings: copies, dense products, and the kernels of a step.

    python -m benchmarks.bench_device [--backend cuda] [--tiny]

Each row is one call over tensors of a real model's shape, captured and replayed many times; its
share is of the bytes or operations that the call must move or do, against what a copy and a dense
product reach in the same run. With ``--tiny`` shapes are small and one replay is enough: for the
emulator, whose times say nothing.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import Device, selected_backend
from pyvt.tensor.dtype import BF16, DTYPES, Q4_K, Q8_0, DType
from pyvt.tensor.quant_tensor import QuantTensor

Call = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured call.

    Attributes:
        name: what is computed.
        call: makes the same result each time.
        num_bytes: bytes that it must move.
        num_operations: multiplications and additions that it must do.
    """

    name: str
    call: Call
    num_bytes: float
    num_operations: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the rows: hidden and MLP size, heads, requests of a step, tokens of each."""

    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_reqs: int
    seq_len: int


QWEN3_0_6B = Shape(
    hidden=1024, inner=3072, num_heads=16, num_kv_heads=8, head_dim=128, num_reqs=64, seq_len=2048
)
TINY = Shape(hidden=64, inner=64, num_heads=2, num_kv_heads=1, head_dim=64, num_reqs=2, seq_len=32)
# Attention layers of Qwen3.6-35B-A3B.
QWEN3_6 = Shape(
    hidden=2048, inner=512, num_heads=16, num_kv_heads=2, head_dim=256, num_reqs=64, seq_len=4096
)
_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Sizes of a delta-rule layer: heads of keys and values, rows of a state as columns."""

    num_key_heads: int
    num_heads: int
    size: int
    num_reqs: int
    seq_len: int


QWEN3_6_DELTA = DeltaShape(num_key_heads=16, num_heads=32, size=128, num_reqs=64, seq_len=8192)
TINY_DELTA = DeltaShape(num_key_heads=1, num_heads=2, size=32, num_reqs=2, seq_len=70)


def seconds_of(device: Device, call: Call, num_runs: int) -> float:
    """Return the time of one replay, the least of three series."""
    graph = device.graph()
    graph.start()
    kept = call()
    graph.stop()
    best = float("inf")
    for _ in range(3):
        wait(kept)
        start = time.perf_counter()
        for _ in range(num_runs):
            graph.run()
        wait(kept)
        best = min(best, (time.perf_counter() - start) / num_runs)
    return best


def wait(tensor: Any) -> None:
    """Wait for what has been queued."""
    tensor[:0].numpy() if tensor.ndim == 1 else tensor[:1, :1].numpy()


def random(rng: np.random.Generator, device: Device, *shape: int) -> Any:
    """Return normal values in bf16 on the device."""
    return device.upload(rng.standard_normal(shape, np.float32).astype(BF16.numpy))


def blocks(rng: np.random.Generator, device: Device, dtype: DType, rows: int, columns: int) -> Any:
    """Return a weight of random bytes, its scales finite."""
    data = rng.integers(0, 64, (rows, dtype.row_bytes(columns)), np.uint8)
    return device.place(QuantTensor(dtype, (rows, columns), data))


def ceiling_rows(rng: np.random.Generator, device: Device, size: int) -> list[Row]:
    """Return a copy and a dense product, whose rates are the ceilings of the others."""
    x = random(rng, device, size, size)
    return [
        Row(name="copy", call=lambda: ops.cast(x, BF16), num_bytes=4.0 * size * size),
        Row(
            name="dense product",
            call=lambda: ops.linear(x, x),
            num_bytes=6.0 * size * size,
            num_operations=2.0 * size**3,
        ),
    ]


def decode_rows(rng: np.random.Generator, device: Device, shape: Shape) -> list[Row]:
    """Return the kernels of a decode step."""
    x = random(rng, device, shape.num_reqs, shape.hidden)
    one = x[:1]
    weight = random(rng, device, shape.inner, shape.hidden)
    norm = device.upload(np.ones(shape.hidden, np.float32))
    gate_up = random(rng, device, shape.num_reqs, 2 * shape.inner)
    size = shape.inner * shape.hidden
    found = [
        Row(name="rms_norm", call=lambda: ops.rms_norm(x, norm, 1e-6), num_bytes=4.0 * x.size),
        Row(
            name="silu_and_mul",
            call=lambda: ops.silu_and_mul(gate_up),
            num_bytes=3.0 * gate_up.size,
        ),
        Row(name="linear, 1 row", call=lambda: ops.linear(one, weight), num_bytes=2.0 * size),
    ]
    for dtype in (Q8_0, Q4_K):
        columns = max(256, shape.hidden)
        packed = blocks(rng, device, dtype, shape.inner, columns)
        row = random(rng, device, 1, columns)
        for act in ("none", "q8"):
            found.append(
                Row(
                    name=f"quant_linear {dtype} {act}, 1 row",
                    call=lambda row=row, packed=packed, act=act: ops.quant_linear(
                        row, packed, act=act
                    ),
                    num_bytes=float(packed.nbytes),
                )
            )
    return [*found, *attention_rows(rng, device, shape)]


def attention_rows(rng: np.random.Generator, device: Device, shape: Shape) -> list[Row]:
    """Return attention of a decode step and of a prefill."""
    width = shape.seq_len // _BLOCK
    pool = (shape.num_reqs * width, shape.num_kv_heads, _BLOCK, shape.head_dim)
    k, v = (random(rng, device, *pool).transpose(0, 2, 1, 3) for _ in range(2))
    order = rng.permutation(pool[0]).astype(np.int32).reshape(shape.num_reqs, width)
    tables, scale = device.upload(order), shape.head_dim**-0.5
    lens = device.upload(np.full(shape.num_reqs, shape.seq_len, np.int32))
    ones = device.upload(np.arange(shape.num_reqs + 1, dtype=np.int32))
    q = random(rng, device, shape.num_reqs, shape.num_heads, shape.head_dim)
    whole = random(rng, device, shape.seq_len, shape.num_heads, shape.head_dim)
    ends = device.upload(np.array([0, shape.seq_len], np.int32))
    pairs = shape.seq_len * (shape.seq_len + 1) / 2

    narrow = [device.upload(x.numpy().astype(DTYPES["fp8_e4m3"].numpy)) for x in (k, v)]

    def decode() -> Any:
        return ops.paged_attention(q, k, v, tables, lens, ones, scale)

    def decode_fp8() -> Any:
        return ops.paged_attention(q, *narrow, tables, lens, ones, scale)

    def prefill() -> Any:
        return ops.paged_attention(whole, k, v, tables[:1], lens[:1], ends, scale)

    return [
        Row(name=f"attention of {shape.head_dim}, decode", call=decode, num_bytes=4.0 * k.size),
        Row(
            name=f"attention of {shape.head_dim}, decode, fp8",
            call=decode_fp8,
            num_bytes=2.0 * k.size,
        ),
        Row(
            name=f"attention of {shape.head_dim}, prefill",
            call=prefill,
            num_bytes=4.0 * whole.size,
            num_operations=4.0 * pairs * shape.num_heads * shape.head_dim,
        ),
    ]


def delta_rows(rng: np.random.Generator, device: Device, shape: DeltaShape) -> list[Row]:
    """Return the delta rule of a prefill, by chunks, and of a decode step."""
    heads, size = shape.num_heads, shape.size
    state = device.upload(np.zeros((shape.num_reqs, heads, size, size), np.float32))
    rate, bias = (device.upload(np.full(heads, x, np.float32)) for x in (-0.1, 0.0))
    weight = device.upload(np.ones(size, np.float32))

    def row(name: str, num_reqs: int, num_tokens: int) -> Row:
        q, k = (random(rng, device, num_tokens, shape.num_key_heads, size) for _ in range(2))
        v, z = (random(rng, device, num_tokens, heads, size) for _ in range(2))
        a, b = (random(rng, device, num_tokens, heads) for _ in range(2))
        ends = np.linspace(0, num_tokens, num_reqs + 1).astype(np.int32)
        slots = np.full(num_tokens, -1, np.int32)
        slots[ends[1:] - 1] = np.arange(num_reqs)
        indices = [device.upload(x) for x in (ends, np.arange(num_reqs, dtype=np.int32), slots)]

        def call() -> Any:
            return ops.gated_delta_net(q, k, v, z, a, b, rate, bias, weight, 1e-6, state, *indices)

        of_states = 8.0 * num_reqs * heads * size * size
        return Row(
            name=f"gated_delta_net, {name}",
            call=call,
            num_bytes=of_states + 2.0 * (2 * q.size + 3 * v.size),
            num_operations=8.0 * num_tokens * heads * size * size,
        )

    return [row("prefill", 1, shape.seq_len), row("decode", shape.num_reqs, shape.num_reqs)]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="cuda", choices=sorted(backends.DEVICE_BACKENDS))
    parser.add_argument("--tiny", action="store_true", help="small shapes, one replay")
    given = parser.parse_args()
    backends.load(given.backend)
    use_backend(given.backend)
    device = selected_backend().device
    assert device is not None, "these backends have a device"
    rng, shape = np.random.default_rng(0), TINY if given.tiny else QWEN3_0_6B
    num_runs = 1 if given.tiny else 50
    ceilings = ceiling_rows(rng, device, 64 if given.tiny else 8192)
    times = [seconds_of(device, row.call, num_runs) for row in ceilings]
    bandwidth, rate = ceilings[0].num_bytes / times[0], ceilings[1].num_operations / times[1]
    label = "SIMULATED, times say nothing" if given.backend in backends.SIMULATED else "device"
    print(f"{label}; copy {bandwidth / 1e12:.2f} TB/s, dense product {rate / 1e12:.1f} TFLOP/s")
    print(f"{'call':34} {'us':>9} {'TB/s':>7} {'TFLOP/s':>8} {'of ceiling':>10}")
    rows = decode_rows(rng, device, shape)
    if not given.tiny:
        rows += attention_rows(rng, device, QWEN3_6)
    rows += delta_rows(rng, device, TINY_DELTA if given.tiny else QWEN3_6_DELTA)
    for row in rows:
        seconds = seconds_of(device, row.call, num_runs)
        least = max(row.num_bytes / bandwidth, row.num_operations / rate)
        print(
            f"{row.name:34} {seconds * 1e6:9.1f} {row.num_bytes / seconds / 1e12:7.2f} "
            f"{row.num_operations / seconds / 1e12:8.1f} {least / seconds:10.0%}"
        )


if __name__ == "__main__":
    main()
