"""Oracles of the gated_delta family: transformers' code for Qwen3-Next, each request by itself."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from parity.hf_f64 import SUFFIX, modeling
from parity.oracles.oracle import Arrays, Oracle, wide

HF = modeling("qwen3_next")


def _gdn_gate(a: Arrays) -> Arrays:
    step = F.softplus(wide(a["a"]) + wide(a["dt_bias"]))
    beta = wide(a["b"]).sigmoid()
    return {"out0": (wide(a["decay_rate"]) * step).numpy(), "out1": beta.numpy()}


def _by_key_head(x: torch.Tensor, num_heads: int, head_map: str) -> torch.Tensor:
    """Give every value head its key head, so that transformers has nothing to repeat."""
    times = num_heads // x.shape[1]
    return x.repeat(1, times, 1) if head_map == "tiled" else x.repeat_interleave(times, 1)


def _run_rule(a: Arrays, g: torch.Tensor, beta: torch.Tensor, is_normed: bool) -> Arrays:
    v, before = wide(a["v"]), wide(a["state"])
    q, k = (_by_key_head(wide(a[name]), v.shape[1], a["head_map"]) for name in "qk")
    state, out = before.clone(), torch.zeros_like(v)
    for slot, (begin, end) in zip(a["initial_slots"], pairwise(a["cu_seqlens_q"]), strict=True):
        current = before[slot] if slot >= 0 else torch.zeros_like(before[0])
        for t in range(begin, end):
            token = [x[None, t : t + 1] for x in (q, k, v, g, beta)]
            o, kept = HF.torch_recurrent_gated_delta_rule(
                *token,
                initial_state=current[None],
                output_final_state=True,
                use_qk_l2norm_in_kernel=is_normed,
            )
            out[t], current = o[0, 0], kept[0]
            if a["state_slots"][t] >= 0:
                state[a["state_slots"][t]] = current
    return {"out": out.numpy(), "state": state.numpy()}


def _gated_delta_rule(a: Arrays) -> Arrays:
    assert a["scale"] == a["q"].shape[-1] ** -0.5, "transformers has this scale only"
    return _run_rule(a, wide(a["g"]), wide(a["beta"]), is_normed=False)


def _gated_delta_net(a: Arrays) -> Arrays:
    gates = _gdn_gate(a)
    o = _run_rule(a, wide(gates["out0"]), wide(gates["out1"]), is_normed=True)
    norm = HF.Qwen3NextRMSNormGated(len(a["weight"]), a["eps"])
    norm.weight.data = wide(a["weight"])
    with torch.no_grad():
        return o | {"out": norm(wide(o["out"]), wide(a["z"])).numpy()}


ORACLES = {
    "gdn_gate": Oracle("torch.nn.functional.softplus, torch.sigmoid", _gdn_gate),
    "gated_delta_rule": Oracle(
        f"transformers qwen3_next torch_recurrent_gated_delta_rule {SUFFIX}", _gated_delta_rule
    ),
    "gated_delta_net": Oracle(
        f"transformers qwen3_next torch_recurrent_gated_delta_rule, Qwen3NextRMSNormGated {SUFFIX}",
        _gated_delta_net,
    ),
}
