"""Random weights in the forms of quantized checkpoints, and their values by the forms' formulas.

Every packer returns the tensors of a module by the ends of their names, and the values f32
``[N, K]``.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Module = tuple[dict[str, Array], Array]

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def words(codes: Array, bits: int, places: tuple[int, ...] | None = None) -> Array:
    """Return codes ``[..., n]`` as I32 ``[..., n · bits / 32]``, each at its place of the word."""
    per_word = 32 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per_word)])
    parts = padded.reshape(*codes.shape[:-1], -1, per_word).astype(np.uint32)
    result = np.zeros(parts.shape[:-1], np.uint32)
    for i in range(per_word):
        result |= parts[..., i] << np.uint32(bits * (i if places is None else places[i]))
    return result.view(np.int32)


def _spread(groups: Array, num_columns: int) -> Array:
    return np.repeat(groups, num_columns // groups.shape[-1], axis=-1)


def _integers(
    rng: np.random.Generator, shape: tuple[int, int], group: int, scale_dtype: Any, zeros: Any
) -> tuple[Array, Array, Array, Array]:
    """Return codes ``[N, K]``, zeros and scales ``[N, G]``, and the values."""
    codes = rng.integers(0, 16, shape)
    size = (shape[0], shape[1] // group)
    zero = rng.integers(*zeros, size)
    scale = rng.uniform(0.01, 0.05, size).astype(scale_dtype)
    steps = (codes - _spread(zero, shape[1])).astype(np.float32)
    return codes, zero, scale, _spread(scale.astype(np.float32), shape[1]) * steps


def gptq(
    rng: np.random.Generator, shape: tuple[int, int], *, group: int = 128, offset: int = 1
) -> Module:
    codes, zero, scale, values = _integers(rng, shape, group, np.float16, (offset, 16 + offset))
    tensors = {
        ".qweight": words(codes, 4).T.copy(),
        ".qzeros": words((zero - offset).T, 4),
        ".scales": scale.T.copy(),
        ".g_idx": (np.arange(shape[1]) // group).astype(np.int32),
    }
    return tensors, values


def gptq_v2(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    return gptq(rng, shape, group=32, offset=0)


def gptq_in_order(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    """``desc_act``: the columns of a group lie anywhere."""
    tensors, values = gptq(rng, shape)
    order = rng.permutation(shape[1])
    codes = np.stack([tensors[".qweight"] >> (4 * i) & 15 for i in range(8)], axis=1)
    codes = codes.reshape(shape[1], shape[0])[order]
    tensors[".qweight"] = words(codes.T, 4).T.copy()
    tensors[".g_idx"] = tensors[".g_idx"][order]
    return tensors, values[:, order]


def awq(rng: np.random.Generator, shape: tuple[int, int], *, group: int = 64) -> Module:
    codes, zero, scale, values = _integers(rng, shape, group, np.float16, (0, 16))
    tensors = {
        ".qweight": words(codes.T, 4, AWQ_PLACES),
        ".qzeros": words(zero.T, 4, AWQ_PLACES),
        ".scales": scale.T.copy(),
    }
    return tensors, values


def pack_int4(rng: np.random.Generator, shape: tuple[int, int], *, group: int = 128) -> Module:
    codes, _, scale, values = _integers(rng, shape, group, ml_dtypes.bfloat16, (8, 9))
    tensors = {
        ".weight_packed": words(codes, 4),
        ".weight_scale": scale,
        ".weight_shape": np.array(shape),
    }
    return tensors, values


def pack_int4_zeros(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    codes, zero, scale, values = _integers(rng, shape, 32, np.float32, (0, 16))
    tensors = {
        ".weight_packed": words(codes, 4),
        ".weight_scale": scale,
        ".weight_shape": np.array(shape),
        ".weight_zero_point": words(zero.T, 4).T.copy(),
    }
    return tensors, values


def pack_int8(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    codes = rng.integers(0, 256, shape)
    scale = rng.uniform(0.001, 0.002, (shape[0], 1)).astype(ml_dtypes.bfloat16)
    tensors = {
        ".weight_packed": words(codes, 8),
        ".weight_scale": scale,
        ".weight_shape": np.array(shape),
    }
    return tensors, scale.astype(np.float32) * (codes - 128).astype(np.float32)


def _e4m3(rng: np.random.Generator, shape: tuple[int, ...], low: int = 0) -> Array:
    """Return every e4m3 number but NaN, from code ``low`` on where only positive ones will do."""
    codes = rng.integers(low, 127, shape, np.uint8)
    if low == 0:
        codes |= rng.integers(0, 2, shape, np.uint8) << np.uint8(7)
    return codes.view(ml_dtypes.float8_e4m3fn)


def fp8_block(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    weight = _e4m3(rng, shape)
    size = (-(-shape[0] // 128), -(-shape[1] // 128))
    scale = rng.uniform(1e-4, 3e-4, size).astype(np.float32)
    by_row = np.repeat(scale, 128, axis=0)[: shape[0]]
    values = weight.astype(np.float32) * np.repeat(by_row, 128, axis=1)[:, : shape[1]]
    return {".weight": weight, ".weight_scale_inv": scale}, values


def fp8_row(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    weight = _e4m3(rng, shape)
    scale = rng.uniform(1e-4, 3e-4, (shape[0], 1)).astype(ml_dtypes.bfloat16)
    values = weight.astype(np.float32) * scale.astype(np.float32)
    return {".weight": weight, ".weight_scale": scale}, values


def fp8_tensor(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    weight, scale = _e4m3(rng, shape), np.array(2.5e-4, np.float32)
    return {".weight": weight, ".weight_scale": scale, ".input_scale": scale}, (
        weight.astype(np.float32) * scale
    )


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _nvfp4(
    rng: np.random.Generator, shape: tuple[int, int], g: np.float32
) -> tuple[Array, Array, Array]:
    codes = rng.integers(0, 16, shape)
    scale = _e4m3(rng, (shape[0], shape[1] // 16), low=1)
    numbers = _E2M1[codes & 7] * np.where(codes > 7, np.float32(-1), np.float32(1))
    groups = scale.astype(np.float32) * g
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return packed, scale, numbers * _spread(groups, shape[1])


def nvfp4_modelopt(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    g = np.float32(rng.uniform(1e-4, 2e-4))
    packed, scale, values = _nvfp4(rng, shape, g)
    tensors = {
        ".weight": packed,
        ".weight_scale": scale,
        ".weight_scale_2": np.array(g),
        ".input_scale": np.array(g),
    }
    return tensors, values


def nvfp4_compressed(rng: np.random.Generator, shape: tuple[int, int]) -> Module:
    stored = np.array([rng.uniform(5e3, 1e4)], np.float32)
    packed, scale, values = _nvfp4(rng, shape, np.float32(1) / stored[0])
    tensors = {
        ".weight_packed": packed,
        ".weight_scale": scale,
        ".weight_global_scale": stored,
        ".input_global_scale": stored,
    }
    return tensors, values


Packer = Callable[[np.random.Generator, tuple[int, int]], Module]
_COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
# Form → its packer, the quantization_config and the format that groups of 128 columns come to.
FORMS: dict[str, tuple[Packer, dict[str, Any], str]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4_g128"),
    "gptq_in_order": (
        gptq_in_order,
        {"quant_method": "gptq", "bits": 4, "desc_act": True},
        "int4_g128",
    ),
    "gptq_v2": (
        gptq_v2,
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        "int4_g32",
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}, "int4_g32"),
    "pack_int4": (pack_int4, _COMPRESSED, "int4_g128"),
    "pack_int4_zeros": (pack_int4_zeros, _COMPRESSED, "int4_g32"),
    "pack_int8": (pack_int8, _COMPRESSED, "int8_g128"),
    "fp8_block": (
        fp8_block,
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "fp8_g128",
    ),
    "fp8_row": (fp8_row, _COMPRESSED | {"format": "float-quantized"}, "fp8_g128"),
    "fp8_tensor": (fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_g128"),
    "nvfp4_modelopt": (
        nvfp4_modelopt,
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        "nvfp4_g128",
    ),
    "nvfp4_compressed": (
        nvfp4_compressed,
        _COMPRESSED | {"format": "nvfp4-pack-quantized"},
        "nvfp4_g128",
    ),
}
