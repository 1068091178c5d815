"""Oracles of the mixture of experts: transformers' router and experts, its casts to f32 in f64."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers

from parity.hf_f64 import SUFFIX, modeling
from parity.oracles.oracle import Arrays, Oracle, wide
from parity.oracles.quant_gguf import ORACLES as QUANT
from pyvt.ops.packed_layouts import unpack_tiles
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import matrix_of


def _config(num_experts: int, hidden: int, inner: int, top_k: int, renormalize: bool) -> Any:
    return transformers.Qwen3MoeConfig(
        num_experts=num_experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=renormalize,
        hidden_size=hidden,
        moe_intermediate_size=inner,
        experts_implementation="eager",
    )


def _router_topk(a: Arrays) -> Arrays:
    logits = wide(a["logits"])
    num_experts = logits.shape[1]
    config = _config(num_experts, num_experts, 1, a["top_k"], a["renormalize"])
    router = modeling("qwen3_moe").Qwen3MoeTopKRouter(config)
    router.weight = torch.nn.Parameter(torch.eye(num_experts, dtype=torch.float64))
    with torch.no_grad():
        _, weights, ids = router(logits)
    return {"out0": weights.numpy(), "out1": ids.numpy().astype(np.int32)}


def _matrix(weight: Any, expert: int) -> torch.Tensor:
    """Return the values of one expert's matrix in f64."""
    if isinstance(weight, PackedTensor):
        packed = weight.matrix(expert)
        stored = unpack_tiles(packed, 0, packed.num_tiles)
    else:
        stored = matrix_of(weight, expert)
    if isinstance(stored, QuantTensor):
        return wide(QUANT["dequantize"].run({"weight": stored})["out"])
    return wide(stored)


def _stack(weight: Any) -> torch.Tensor:
    return torch.stack([_matrix(weight, i) for i in range(weight.shape[0])])


def _fused_experts(a: Arrays) -> Arrays:
    if a["act"] == "q8":
        return _quantized_experts(a)
    num_experts, inner, hidden = a["gate"].shape
    config = _config(num_experts, hidden, inner, a["expert_ids"].shape[1], True)
    experts = modeling("qwen3_moe").Qwen3MoeExperts(config).double()
    both = torch.cat([_stack(a["gate"]), _stack(a["up"])], dim=1)
    experts.gate_up_proj = torch.nn.Parameter(both)
    experts.down_proj = torch.nn.Parameter(_stack(a["down"]))
    ids = torch.from_numpy(a["expert_ids"].astype(np.int64))
    with torch.no_grad():
        out = experts(wide(a["x"]), ids, wide(a["expert_weights"]))
    return {"out": out.numpy()}


def _quantized_experts(a: Arrays) -> Arrays:
    def product(rows: torch.Tensor, weight: Any, expert: int) -> torch.Tensor:
        if not isinstance(weight, np.ndarray) and weight.dtype.is_block:
            rounded = QUANT["quantize_q8_rows"].run({"x": rows.numpy()})
            scales = np.repeat(rounded["out1"].astype(np.float64), 32, axis=-1)
            rows = torch.from_numpy(rounded["out0"] * scales)
        return F.linear(rows, _matrix(weight, expert))

    x, shares = wide(a["x"]), wide(a["expert_weights"])
    out = torch.zeros_like(x)
    for t, ids in enumerate(a["expert_ids"].tolist()):
        for k, expert in enumerate(ids):
            row = x[t : t + 1]
            hidden = F.silu(product(row, a["gate"], expert)) * product(row, a["up"], expert)
            out[t] += shares[t, k] * product(hidden, a["down"], expert)[0]
    return {"out": out.numpy()}


def _add_shared_expert(a: Arrays) -> Arrays:
    gated = torch.sigmoid(wide(a["gate"])) * wide(a["shared"])
    return {"out": (wide(a["routed"]) + gated).numpy()}


ORACLES = {
    "router_topk": Oracle(f"transformers Qwen3MoeTopKRouter {SUFFIX}", _router_topk),
    "fused_experts": Oracle(
        "transformers Qwen3MoeExperts of the unpacked weights, decoded by gguf.quants.dequantize; "
        "for q8 torch.fake_quantize_per_channel_affine and torch.nn.functional.linear",
        _fused_experts,
    ),
    "add_shared_expert": Oracle("torch.sigmoid, torch.mul, torch.add", _add_shared_expert),
}
