"""Oracles of the packed weight formats: gguf-py decodes those of GGUF, torch those with f32 scales;
torch quantises activations and sums.
"""

from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide

GROUP = 32


# Of a 4-bit float: sign, two bits of exponent, one of mantissa.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _nibbles(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Return codes ``[B, n]`` of bytes ``[B, n / 2]``: in runs of ``width`` low halves first."""
    runs = packed.reshape(len(packed), -1, 1, width)
    return torch.cat([runs & 15, runs >> 4], dim=2).reshape(len(packed), -1)


def _e4m3(packed: torch.Tensor) -> torch.Tensor:
    return packed.contiguous().view(torch.float8_e4m3fn).float()


def _decode_scaled(dtype: Any, blocks: Any) -> Any:
    """Return the values of blocks that begin with one f32 scale."""
    kind, size = dtype.name.split("_g")[0], dtype.block_size
    raw = torch.from_numpy(np.ascontiguousarray(blocks)).reshape(-1, dtype.block_bytes)
    scale, rest = raw[:, :4].contiguous().view(torch.float32), raw[:, 4:]
    if kind == "int4":
        zero = 16 - rest[:, :1].int()
        values = scale * (_nibbles(rest[:, 1:], 16).int() - zero)
    elif kind == "int8":
        values = scale * rest.contiguous().view(torch.int8)
    elif kind == "fp8":
        values = _e4m3(rest) * scale
    else:
        codes = _nibbles(rest[:, size // 16 :], 8).long()
        numbers = E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
        groups = _e4m3(rest[:, : size // 16]) * scale
        values = numbers * groups.repeat_interleave(16, dim=1)
    return values.reshape(*blocks.shape[:-1], -1).numpy()


def _decode(weight: Any, blocks: Any) -> Any:
    if weight.dtype.gguf_id is None:
        return _decode_scaled(weight.dtype, blocks)
    with np.errstate(all="ignore"):
        qtype = gguf.GGMLQuantizationType[weight.dtype.name.upper()]
        return gguf.quants.dequantize(np.ascontiguousarray(blocks), qtype)


def _dequantize(a: Arrays) -> Arrays:
    return {"out": _decode(a["weight"], a["weight"].blocks)}


def _quant_embedding(a: Arrays) -> Arrays:
    return {"out": _decode(a["weight"], a["weight"].blocks[a["input_ids"]])}


def _quantize_q8_rows(a: Arrays) -> Arrays:
    x = torch.from_numpy(a["x"].astype(np.float32)).reshape(-1, GROUP)
    largest = x.abs().amax(-1)
    is_finite = torch.isfinite(largest)
    is_used = is_finite & (largest >= 2.0**-100)
    x = torch.where(is_used[:, None], x, 0.0)
    scales = torch.where(is_used, largest / 127, 1.0)
    offsets = torch.zeros(len(x), dtype=torch.int32)
    rounded = torch.fake_quantize_per_channel_affine(x, scales, offsets, 0, -127, 127)
    codes = torch.round(rounded / scales[:, None]).to(torch.int8)
    scales = torch.where(is_used, scales, torch.where(is_finite, 0.0, torch.nan))
    shape = a["x"].shape
    return {
        "out0": codes.numpy().reshape(shape),
        "out1": scales.numpy().reshape(*shape[:-1], shape[-1] // GROUP),
    }


def _quant_linear(a: Arrays) -> Arrays:
    x, bias = wide(a["x"]), a["bias"]
    if a["act"] == "q8":
        rounded = _quantize_q8_rows(a)
        scales = np.repeat(rounded["out1"].astype(np.float64), GROUP, axis=-1)
        x = torch.from_numpy(rounded["out0"] * scales)
    weight = wide(_decode(a["weight"], a["weight"].blocks))
    return {"out": F.linear(x, weight, None if bias is None else wide(bias)).numpy()}


ORACLES = {
    "dequantize": Oracle("gguf.quants.dequantize; torch for blocks with an f32 scale", _dequantize),
    "quant_embedding": Oracle("gguf.quants.dequantize of the rows", _quant_embedding),
    "quantize_q8_rows": Oracle("torch.fake_quantize_per_channel_affine", _quantize_q8_rows),
    "quant_linear": Oracle(
        "gguf.quants.dequantize, torch.fake_quantize_per_channel_affine for q8, "
        "torch.nn.functional.linear",
        _quant_linear,
    ),
}
