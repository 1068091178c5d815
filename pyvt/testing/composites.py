"""The composite of every fused op, written with public ops: what a fused kernel must equal.

A composite takes the keyword arguments of the fused op and returns its outputs by name, as
``run_case`` does. In a half dtype it rounds between its ops, which the fused op does not, so the
two are compared in f32 and f64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.testing.op_cases.case import Inputs

Outputs = dict[str, np.ndarray[Any, Any]]


def _fused_add_rms_norm(a: Inputs) -> Outputs:
    residual = ops.add(a["residual"], a["x"])
    return {"residual": residual, "out": ops.rms_norm(residual, a["weight"], a["eps"])}


def _silu_and_mul(a: Inputs) -> Outputs:
    gate, up = np.split(a["x"], 2, axis=-1)
    return {"out": ops.mul(ops.silu(gate), up)}


def _gelu_and_mul(a: Inputs) -> Outputs:
    gate, up = np.split(a["x"], 2, axis=-1)
    return {"out": ops.mul(ops.gelu(gate), up)}


COMPOSITES: dict[str, Callable[[Inputs], Outputs]] = {
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _silu_and_mul,
    "gelu_and_mul": _gelu_and_mul,
}
DTYPES = ("f32", "f64")
