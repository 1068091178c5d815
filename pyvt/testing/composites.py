"""The composite of every fused op, written with public ops: what a fused kernel must equal.

A composite takes the keyword arguments of the fused op and returns its outputs by name, as
``run_case`` does. In a half dtype it rounds between its ops, which the fused op does not, so the
two are compared in f32 and f64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.ops.gated_delta import L2_EPS
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


def _sigmoid_gate(a: Inputs) -> Outputs:
    return {"out": ops.mul(a["x"], ops.sigmoid(a["gate"]))}


def _rms_norm_gated(a: Inputs) -> Outputs:
    return {"out": ops.mul(ops.rms_norm(a["x"], a["weight"], a["eps"]), ops.silu(a["gate"]))}


def _rotate_and_cache(a: Inputs) -> Outputs:
    q, k = a["q"], a["k"]
    if a["q_weight"] is not None:
        q, k = ops.rms_norm(q, a["q_weight"], a["eps"]), ops.rms_norm(k, a["k_weight"], a["eps"])
    ops.rotary_embedding(q, k, a["positions"], a["cos_sin"])
    ops.reshape_and_cache(k, a["v"], a["k_cache"], a["v_cache"], a["slot_mapping"])
    return {"q": q, "k": k, "k_cache": a["k_cache"], "v_cache": a["v_cache"]}


def _gated_delta_net(a: Inputs) -> Outputs:
    q, k = ops.l2_norm(a["q"], L2_EPS), ops.l2_norm(a["k"], L2_EPS)
    g, beta = ops.gdn_gate(a["a"], a["b"], a["decay_rate"], a["dt_bias"])
    slots = {name: a[name] for name in ("cu_seqlens_q", "initial_slots", "state_slots")}
    o = ops.gated_delta_rule(
        q,
        k,
        a["v"],
        g,
        beta,
        a["state"],
        **slots,
        scale=q.shape[-1] ** -0.5,
        head_map=a["head_map"],
    )
    return {"state": a["state"], "out": ops.rms_norm_gated(o, a["z"], a["weight"], a["eps"])}


COMPOSITES: dict[str, Callable[[Inputs], Outputs]] = {
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _silu_and_mul,
    "gelu_and_mul": _gelu_and_mul,
    "sigmoid_gate": _sigmoid_gate,
    "rms_norm_gated": _rms_norm_gated,
    "rotate_and_cache": _rotate_and_cache,
    "gated_delta_net": _gated_delta_net,
}
DTYPES = ("f32", "f64")
