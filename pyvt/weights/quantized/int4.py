"""GPTQ, AWQ and compressed-tensors ``pack-quantized``: integers of 4 or 8 bits with group scales.

All of them are ``W[n, k] = scale · (q - z)``; they differ in where q and z lie:

1. GPTQ: ``qweight`` I32 ``[K/8, N]``, the lowest bits the first of 8 k; ``qzeros`` ``[G, N/8]``
   likewise over n, one less than z (not in ``gptq_v2``); ``scales`` ``[G, N]``; ``g_idx`` ``[K]``,
   the group of each k: columns may be in another order than their groups (``desc_act``), each
   expert's in its own.
2. AWQ (gemm): ``qweight`` I32 ``[K, N/8]``, ``qzeros`` ``[G, N/8]``, 8 columns in the order
   ``AWQ_ORDER``; ``scales`` ``[G, N]``.
3. pack-quantized: ``weight_packed`` I32 ``[N, K·b/32]``, ``weight_scale`` ``[N, G]``, optionally
   ``weight_zero_point`` I32 ``[N·b/32, G]``, packed over n; without it z is ``2^(b-1)``.

Dims: N outputs, K inputs, G groups.

Source: AutoGPTQ, AutoAWQ and compressed-tensors; the formats of their checkpoints.
"""

from typing import Any

import numpy as np

from pyvt.errors import UnsupportedError
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.quantized.blocks import blocks_of, half_split, nibbles_in_order, scaled_dtype
from pyvt.weights.quantized.format import Layout, Parts, Scheme

Array = np.ndarray[Any, Any]

# Where in a word the nibble of each of 8 columns lies.
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_PER_WORD = 8


def gptq_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format; ``scales`` say how many groups there are."""
    rows, num_outputs = parts.shape(".qweight")
    num_groups = parts.shape(".scales")[0]
    return _int4_layout(parts, num_outputs, rows * _PER_WORD, num_groups)


def read_gptq(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return the weight, its columns in the order of their groups (``desc_act``)."""
    columns = _order(parts, ".g_idx", layout.shape[1], parts.shape(".scales")[0])
    words = np.ascontiguousarray(parts.array(".qweight").T)
    zeros = _nibbles(parts.array(".qzeros")) + np.uint8(scheme.zero_offset)
    codes = nibbles_in_order(_bytes(words))
    return _int4(layout, codes, zeros.T, parts.array(".scales").T, columns)


def awq_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format."""
    num_inputs, words = parts.shape(".qweight")
    return _int4_layout(parts, words * _PER_WORD, num_inputs, parts.shape(".scales")[0])


def read_awq(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return the weight."""
    codes, zeros = (_awq_columns(parts.array(name)) for name in (".qweight", ".qzeros"))
    return _int4(layout, np.ascontiguousarray(codes.T), zeros.T, parts.array(".scales").T)


def pack_layout(parts: Parts, scheme: Scheme) -> Layout:
    """Return shape and format; the bits are those that the packed row has for each column."""
    num_outputs, num_inputs = (int(size) for size in parts.array(".weight_shape").reshape(-1))
    bits = 32 * parts.shape(".weight_packed")[1] // max(1, num_inputs)
    num_groups = parts.shape(".weight_scale")[-1]
    if bits == 4:
        return _int4_layout(parts, num_outputs, num_inputs, num_groups)
    if bits != 8 or ".weight_zero_point" in parts:
        raise UnsupportedError(
            f"[weights] {parts.name}: expected 4 bits, or 8 bits without zero points, got {bits}"
            + (" bits with zero points" if ".weight_zero_point" in parts else " bits")
        )
    dtype = scaled_dtype("int8", num_inputs // num_groups, num_inputs, parts.name)
    return Layout((num_outputs, num_inputs), dtype)


def read_pack(parts: Parts, scheme: Scheme, layout: Layout) -> QuantTensor:
    """Return the weight, its columns in the order of their groups (``actorder``)."""
    scales = parts.array(".weight_scale")
    columns = _order(parts, ".weight_g_idx", layout.shape[1], scales.shape[1])
    packed = _bytes(parts.array(".weight_packed"))
    if packed.shape[1] == layout.shape[1]:
        codes = _ordered((packed ^ np.uint8(128)).view(np.int8), columns)
        wide = scales.astype(np.float32)
        return blocks_of(layout.dtype, layout.shape, columns, scale=wide, qs=codes)
    if ".weight_zero_point" in parts:
        zeros = _nibbles(parts.array(".weight_zero_point").T).T[: layout.shape[0]]
    else:
        zeros = np.full(scales.shape, 8, np.uint8)
    return _int4(layout, nibbles_in_order(packed), zeros, scales, columns)


def _int4_layout(parts: Parts, num_outputs: int, num_inputs: int, num_groups: int) -> Layout:
    if num_groups == 0 or num_inputs % num_groups:
        raise UnsupportedError(
            f"[weights] {parts.name}: expected groups of one size, got {num_groups} groups of "
            f"{num_inputs} columns"
        )
    dtype = scaled_dtype("int4", num_inputs // num_groups, num_inputs, parts.name)
    return Layout((num_outputs, num_inputs), dtype)


def _int4(
    layout: Layout, codes: Array, zeros: Array, scales: Array, columns: Array | None = None
) -> QuantTensor:
    """Return blocks of codes ``[N, K]`` and of zeros and scales ``[N, G]``."""
    return blocks_of(
        layout.dtype,
        layout.shape,
        columns,
        scale=scales.astype(np.float32),
        raised=np.uint8(16) - zeros,
        qs=half_split(_ordered(codes, columns), 16),
    )


def _order(parts: Parts, part: str, num_columns: int, num_groups: int) -> Array | None:
    """Return the columns in the order of their groups, None where they lie so.

    Raises UnsupportedError for groups of other sizes than one.
    """
    if part not in parts or parts.array(part).size == 0:
        return None
    groups = parts.array(part)
    columns = np.argsort(groups, kind="stable").astype(np.int32)
    size = num_columns // num_groups
    if groups.shape != (num_columns,) or np.any(groups[columns] != np.arange(num_columns) // size):
        raise UnsupportedError(
            f"[weights] {parts.name}: expected {part} with groups of {size} columns, got others"
        )
    if np.array_equal(columns, np.arange(num_columns)):
        return None
    return columns


def _ordered(codes: Array, columns: Array | None) -> Array:
    return codes if columns is None else codes[:, columns]


def _bytes(words: Array) -> Array:
    return np.ascontiguousarray(words).view(np.uint8)


def _nibbles(words: Array) -> Array:
    """Return the 8 codes of each word side by side, uint8 ``[..., 8n]`` of I32 ``[..., n]``."""
    return nibbles_in_order(_bytes(words))


def _awq_columns(words: Array) -> Array:
    codes = _nibbles(words).reshape(*words.shape, _PER_WORD)
    return codes[..., AWQ_ORDER].reshape(len(words), -1)
