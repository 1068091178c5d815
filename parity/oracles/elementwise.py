"""Oracles of the elementwise family."""

import ml_dtypes
import numpy as np
import torch

from parity.oracles.oracle import Arrays, Oracle, wide

_TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def _add(a: Arrays) -> Arrays:
    return {"out": torch.add(wide(a["x"]), wide(a["y"])).numpy()}


def _mul(a: Arrays) -> Arrays:
    return {"out": torch.mul(wide(a["x"]), wide(a["y"])).numpy()}


def _scale(a: Arrays) -> Arrays:
    return {"out": torch.mul(wide(a["x"]), a["factor"]).numpy()}


def _cast(a: Arrays) -> Arrays:
    x = np.ascontiguousarray(a["x"])
    is_bf16 = x.dtype == ml_dtypes.bfloat16
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if is_bf16 else None
    tensor = torch.from_numpy(x) if tensor is None else tensor
    return {"out": tensor.to(_TORCH[a["dtype"]]).to(torch.float64).numpy()}


def _soft_cap(a: Arrays) -> Arrays:
    return {"out": (torch.tanh(wide(a["x"]) / a["cap"]) * a["cap"]).numpy()}


def _take_columns(a: Arrays) -> Arrays:
    columns = torch.from_numpy(a["columns"].astype(np.int64))
    return {"out": torch.index_select(wide(a["x"]), -1, columns).numpy()}


ORACLES = {
    "add": Oracle("torch.add", _add),
    "mul": Oracle("torch.mul", _mul),
    "scale": Oracle("torch.mul", _scale),
    "cast": Oracle("torch.Tensor.to", _cast),
    "take_columns": Oracle("torch.index_select", _take_columns),
    "soft_cap": Oracle("torch.div, torch.tanh, torch.mul", _soft_cap),
}
