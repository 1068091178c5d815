"""GGUF tensor names and their canonical twins, one table an architecture (data only).

``{i}`` is the number of a layer. Names stand without ``.weight`` or ``.bias``; a tensor whose full
name no table knows keeps the name of its file.
"""

import re

_DENSE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_QK_NORM = {
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
_EXPERTS = {
    "blk.{i}.ffn_gate_inp": "model.layers.{i}.mlp.gate",
    "blk.{i}.ffn_gate_exps": "model.layers.{i}.mlp.experts.gate_proj",
    "blk.{i}.ffn_up_exps": "model.layers.{i}.mlp.experts.up_proj",
    "blk.{i}.ffn_down_exps": "model.layers.{i}.mlp.experts.down_proj",
}

TENSOR_NAMES: dict[str, dict[str, str]] = {
    "llama": _DENSE,
    "qwen3": _DENSE | _QK_NORM,
    "qwen3moe": _DENSE | _QK_NORM | _EXPERTS,
}
# One tensor of rows [q; k; v], which some converters write in place of three.
FUSED_QKV = dict.fromkeys(TENSOR_NAMES, "blk.{i}.attn_qkv")
# One tensor of the gate and up rows of each expert, gate first, which converters write on request.
FUSED_EXPERTS = {"qwen3moe": "blk.{i}.ffn_gate_up_exps"}
# Architectures whose q and k rows are stored for a rotation of adjacent pairs.
PERMUTED_QK = frozenset({"llama"})
SUFFIXES = (".weight", ".bias")

_LAYER = re.compile(r"^(blk|model\.layers)\.(\d+)\.", re.ASCII)


def canonical_name(architecture: str, gguf_name: str) -> str | None:
    """Return the canonical name of a tensor, None where the architecture has no row for it."""
    return _translate(TENSOR_NAMES.get(architecture, {}), gguf_name)


def gguf_name(architecture: str, canonical: str) -> str | None:
    """Return the GGUF name of a canonical one, None where the architecture has no row for it."""
    rows = TENSOR_NAMES.get(architecture, {})
    return _translate({value: key for key, value in rows.items()}, canonical)


def fused_qkv_stem(architecture: str, gguf_name: str) -> tuple[str, str] | None:
    """Return ``(canonical prefix, suffix)`` where the tensor is a fused qkv, None for others.

    ``model.layers.3.self_attn.`` + ``q_proj`` + ``.weight`` is then one of the three names.
    """
    row = FUSED_QKV.get(architecture)
    name = row and _translate({row: "model.layers.{i}.self_attn."}, gguf_name)
    if not name:
        return None
    suffix = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
    return name.removesuffix(suffix), suffix


def fused_experts_stem(architecture: str, gguf_name: str) -> str | None:
    """Return the canonical prefix where the tensor is a fused gate and up of experts, else None.

    ``model.layers.3.mlp.experts.`` + ``gate_proj`` + ``.weight`` is then one of the two names.
    """
    row = FUSED_EXPERTS.get(architecture)
    name = row and _translate({row: "model.layers.{i}.mlp.experts."}, gguf_name)
    return name.removesuffix(".weight") if name and name.endswith(".weight") else None


def _translate(rows: dict[str, str], name: str) -> str | None:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            layer = _LAYER.match(stem)
            row = rows.get(_LAYER.sub(r"\1.{i}.", stem))
            if row is None or ("{i}" in row) != bool(layer):
                return None
            return row.replace("{i}", layer[2] if layer else "") + suffix
    return None
