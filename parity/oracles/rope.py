"""Oracles of the rotary embedding.

Transformers keeps cosines and sines of whole heads, each half twice; pyvt keeps each once.
"""

import torch
from transformers import LlamaConfig
from transformers.models.qwen3_next.modeling_qwen3_next import apply_rotary_pos_emb

from parity import hf_f64
from parity.oracles.oracle import Arrays, Oracle, wide


def _rope_cos_sin(a: Arrays) -> Arrays:
    rotary = hf_f64.modeling("llama").LlamaRotaryEmbedding(LlamaConfig())
    rotary.inv_freq = wide(a["inv_freq"])
    rotary.attention_scaling = a.get("attention_factor", 1.0)
    first = a.get("first_position", 0)
    positions = torch.arange(first, first + a["num_positions"])[None]
    halves = rotary(torch.empty(0, dtype=torch.float64), positions)
    half = a["inv_freq"].shape[0]
    return {"out": torch.cat([x[0, :, :half] for x in halves], dim=-1).numpy()}


def _rotary_embedding(a: Arrays) -> Arrays:
    rows = wide(a["cos_sin"])[wide(a["positions"])]
    cos, sin = (torch.cat([half, half], dim=-1)[None] for half in rows.chunk(2, dim=-1))
    q, k = (wide(a[name])[None] for name in ("q", "k"))
    q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    return {"q": q[0].numpy(), "k": k[0].numpy()}


ORACLES = {
    "rope_cos_sin": Oracle(
        f"transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.forward, {hf_f64.SUFFIX}",
        _rope_cos_sin,
    ),
    "rotary_embedding": Oracle(
        "transformers.models.qwen3_next.modeling_qwen3_next.apply_rotary_pos_emb on f64",
        _rotary_embedding,
    ),
}
