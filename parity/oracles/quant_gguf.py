"""Oracles of the packed weight formats: gguf-py decodes, torch quantises activations and sums."""

from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide

GROUP = 32


def _decode(weight: Any, blocks: Any) -> Any:
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
    "dequantize": Oracle("gguf.quants.dequantize", _dequantize),
    "quant_embedding": Oracle("gguf.quants.dequantize of the rows", _quant_embedding),
    "quantize_q8_rows": Oracle("torch.fake_quantize_per_channel_affine", _quantize_q8_rows),
    "quant_linear": Oracle(
        "gguf.quants.dequantize, torch.fake_quantize_per_channel_affine for q8, "
        "torch.nn.functional.linear",
        _quant_linear,
    ),
}
