"""Oracles of the norm family."""

import torch
import torch.nn.functional as F

from parity.hf_f64 import SUFFIX, modeling
from parity.oracles.oracle import Arrays, Oracle, wide

HF = modeling("qwen3_next")


def _rms_norm(a: Arrays) -> Arrays:
    weight = wide(a["weight"])
    return {"out": F.rms_norm(wide(a["x"]), weight.shape, weight, a["eps"]).numpy()}


def _fused_add_rms_norm(a: Arrays) -> Arrays:
    total = (wide(a["x"]) + wide(a["residual"])).numpy()
    rounded = total.astype(a["residual"].dtype)
    return {"residual": total} | _rms_norm({"x": rounded, "weight": a["weight"], "eps": a["eps"]})


def _rms_norm_gated(a: Arrays) -> Arrays:
    norm = HF.Qwen3NextRMSNormGated(len(a["weight"]), a["eps"])
    norm.weight.data = wide(a["weight"])
    with torch.no_grad():
        return {"out": norm(wide(a["x"]), wide(a["gate"])).numpy()}


def _l2_norm(a: Arrays) -> Arrays:
    return {"out": HF.l2norm(wide(a["x"]), eps=a["eps"]).numpy()}


ORACLES = {
    "rms_norm": Oracle("torch.nn.functional.rms_norm", _rms_norm),
    "fused_add_rms_norm": Oracle("torch.add, torch.nn.functional.rms_norm", _fused_add_rms_norm),
    "rms_norm_gated": Oracle(
        f"transformers qwen3_next Qwen3NextRMSNormGated {SUFFIX}", _rms_norm_gated
    ),
    "l2_norm": Oracle(f"transformers qwen3_next l2norm {SUFFIX}", _l2_norm),
}
