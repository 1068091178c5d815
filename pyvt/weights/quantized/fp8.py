"""FP8 weights: e4m3 numbers with a scale for a block, a row or the whole tensor.

``W[n, k] = e4m3(w[n, k]) · scale``, whatever the scale's name:

1. ``weight_scale_inv`` ``[⌈N/128⌉, ⌈K/128⌉]`` (``weight_block_size`` of the config);
2. ``weight_scale``: one number, ``[N]`` or ``[N, 1]``.

Experts may lie in one tensor ``[E, N, K]`` with scales ``[E, ⌈N/128⌉, ⌈K/128⌉]``; those of gate and
up may be one, gate first, where a half is a multiple of a block.

Dims: N outputs, K inputs, G scales of a row.
"""

from typing import Any

import numpy as np

from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.mathutil import cdiv
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.quantized.blocks import blocks_of, scaled_dtype
from pyvt.weights.quantized.format import Layout, Parts, Scheme

Array = np.ndarray[Any, Any]


def block_fp8_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format of a weight with scales of blocks."""
    shape = parts.shape(".weight")
    if parts.half is not None and shape[-2] % scheme.block[0]:
        raise UnsupportedError(
            f"[weights] {parts.name}: expected a multiple of {scheme.block[0]} rows for gate and "
            f"up of experts in one tensor, got {shape[-2]}"
        )
    return Layout(shape, scaled_dtype("fp8", scheme.block[1], shape[-1], parts.name))


def read_block_fp8(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return the weight. Raises CheckpointError where the scales do not fit it."""
    scales = parts.array(".weight_scale_inv").astype(np.float32)
    num_rows, num_columns = scheme.block
    *leading, rows, columns = layout.shape
    if parts.half is not None:
        # Gate and up share no block of rows, where they lie in one tensor.
        size = cdiv(rows, num_rows)
        scales = scales[..., parts.half * size : (parts.half + 1) * size, :]
    expected = (*leading, cdiv(rows, num_rows), cdiv(columns, num_columns))
    if scales.shape != expected:
        raise _misfit(parts, ".weight_scale_inv", expected, scales.shape)
    size = layout.dtype.block_size
    by_row = np.repeat(scales, num_rows, axis=-2)[..., :rows, :]
    by_block = np.repeat(by_row, num_columns // size, axis=-1)[..., : columns // size]
    return _blocks(parts, layout, by_block)


def fp8_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format of a weight with scales of rows, or one scale."""
    shape = parts.shape(".weight")
    return Layout(shape, scaled_dtype("fp8", shape[-1], shape[-1], parts.name))


def read_fp8(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return the weight. Raises CheckpointError where the scales do not fit it."""
    scales = parts.array(".weight_scale").astype(np.float32)
    num_rows = layout.shape[0]
    if scales.size not in (1, num_rows):
        raise _misfit(parts, ".weight_scale", (num_rows, 1), scales.shape)
    by_row = np.broadcast_to(scales.reshape(-1, 1), (num_rows, 1))
    return _blocks(parts, layout, by_row)


def _blocks(parts: Parts, layout: Layout, scales: Array) -> QuantTensor:
    codes = parts.array(".weight").view(np.uint8)
    return blocks_of(layout.dtype, layout.shape, scale=scales, qs=codes)


def _misfit(parts: Parts, part: str, expected: Any, got: Any) -> CheckpointError:
    name = parts.names[part]
    path = parts.source.info(name).path
    return CheckpointError(
        f"[weights] {name} in {str(path)!r}: expected scales {expected}, got {got}",
        path=path,
        tensor=name,
    )
