"""Oracles of the norm family."""

import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide


def _rms_norm(a: Arrays) -> Arrays:
    weight = wide(a["weight"])
    return {"out": F.rms_norm(wide(a["x"]), weight.shape, weight, a["eps"]).numpy()}


def _fused_add_rms_norm(a: Arrays) -> Arrays:
    total = (wide(a["x"]) + wide(a["residual"])).numpy()
    rounded = total.astype(a["residual"].dtype)
    return {"residual": total} | _rms_norm({"x": rounded, "weight": a["weight"], "eps": a["eps"]})


ORACLES = {
    "rms_norm": Oracle("torch.nn.functional.rms_norm", _rms_norm),
    "fused_add_rms_norm": Oracle("torch.add, torch.nn.functional.rms_norm", _fused_add_rms_norm),
}
