"""GGUF tensor names and their canonical twins, one table an architecture (data only).

``{i}`` is the number of a layer. Names stand without ``.weight`` or ``.bias``; a tensor whose full
name no table knows keeps the name of its file.
"""

import re
from collections.abc import Container

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
_SHARED_EXPERT = {
    "blk.{i}.ffn_gate_inp_shexp": "model.layers.{i}.mlp.shared_expert_gate",
    "blk.{i}.ffn_gate_shexp": "model.layers.{i}.mlp.shared_expert.gate_proj",
    "blk.{i}.ffn_up_shexp": "model.layers.{i}.mlp.shared_expert.up_proj",
    "blk.{i}.ffn_down_shexp": "model.layers.{i}.mlp.shared_expert.down_proj",
}
_LINEAR_ATTENTION = {
    "blk.{i}.attn_qkv": "model.layers.{i}.linear_attn.in_proj_qkv",
    "blk.{i}.attn_gate": "model.layers.{i}.linear_attn.in_proj_z",
    "blk.{i}.ssm_beta": "model.layers.{i}.linear_attn.in_proj_b",
    "blk.{i}.ssm_alpha": "model.layers.{i}.linear_attn.in_proj_a",
    "blk.{i}.ssm_in": "model.layers.{i}.linear_attn.in_proj_qkvz",
    "blk.{i}.ssm_ba": "model.layers.{i}.linear_attn.in_proj_ba",
    "blk.{i}.ssm_conv1d": "model.layers.{i}.linear_attn.conv1d",
    "blk.{i}.ssm_norm": "model.layers.{i}.linear_attn.norm",
    "blk.{i}.ssm_out": "model.layers.{i}.linear_attn.out_proj",
}
_POST_NORM = {"blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm"}
_HYBRID = (
    {key: value for key, value in _DENSE.items() if key != "blk.{i}.ffn_norm"}
    | _QK_NORM
    | _LINEAR_ATTENTION
    | _POST_NORM
)

TENSOR_NAMES: dict[str, dict[str, str]] = {
    "llama": _DENSE,
    "qwen3": _DENSE | _QK_NORM,
    "qwen3moe": _DENSE | _QK_NORM | _EXPERTS,
    "qwen35": _HYBRID,
    "qwen35moe": _HYBRID | _EXPERTS | _SHARED_EXPERT,
    "qwen3next": _HYBRID | _EXPERTS | _SHARED_EXPERT,
}
# Full names, without a suffix or with one that is part of the canonical name.
_STATE_SPACE = {
    "blk.{i}.ssm_a": "model.layers.{i}.linear_attn.A",
    "blk.{i}.ssm_dt.bias": "model.layers.{i}.linear_attn.dt_bias",
}
WHOLE_NAMES: dict[str, dict[str, str]] = {
    "qwen35": _STATE_SPACE,
    "qwen35moe": _STATE_SPACE,
    "qwen3next": _STATE_SPACE,
}
# The head that drafts tokens: its own tensors, in the block behind the last layer.
DRAFT_NAMES = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head_norm": "norm",
    "embed_tokens": "embed_tokens",
    "shared_head_head": "lm_head",
}
# One tensor of rows [q; k; v], which some converters write in place of three.
FUSED_QKV = dict.fromkeys(TENSOR_NAMES, "blk.{i}.attn_qkv")
# One tensor of the gate and up rows of each expert, gate first, which converters write on request.
FUSED_EXPERTS = dict.fromkeys(("qwen3moe", "qwen35moe", "qwen3next"), "blk.{i}.ffn_gate_up_exps")
# Architectures whose q rows have as many rows of a gate beside them, head by head.
GATED_Q = frozenset({"qwen35", "qwen35moe", "qwen3next"})
# A layer with this tensor has linear attention; its attn_qkv is no fused one.
LINEAR_MARK = "blk.{i}.ssm_a"
# Architectures whose q and k rows are stored for a rotation of adjacent pairs.
PERMUTED_QK = frozenset({"llama"})
SUFFIXES = (".weight", ".bias")

_LAYER = re.compile(r"^(blk|model\.layers)\.(\d+)\.", re.ASCII)
_DRAFT = re.compile(r"^blk\.(\d+)\.nextn\.(\w+)\.weight$", re.ASCII)
_DRAFT_LAYER = re.compile(r"^mtp\.layers\.(\d+)\.", re.ASCII)


def canonical_name(architecture: str, gguf_name: str, num_layers: int | None = None) -> str | None:
    """Return the canonical name of a tensor, None where the architecture has no row for it.

    Blocks from ``num_layers`` on are those of the head that drafts tokens, ``mtp``.
    """
    draft = _DRAFT.match(gguf_name)
    if draft is not None:
        name = DRAFT_NAMES.get(draft[2])
        return None if name is None or num_layers is None else f"mtp.{name}.weight"
    found = _whole(WHOLE_NAMES.get(architecture, {}), gguf_name)
    found = found or _translate(TENSOR_NAMES.get(architecture, {}), gguf_name)
    return None if found is None else draft_layer_name(found, num_layers)


def draft_layer_name(canonical: str, num_layers: int | None) -> str:
    """Return the name of a layer's tensor, of the draft head where the layer lies behind all."""
    layer = _LAYER.match(canonical)
    if layer is None or num_layers is None or int(layer[2]) < num_layers:
        return canonical
    return f"mtp.layers.{int(layer[2]) - num_layers}.{canonical[layer.end() :]}"


def gguf_name(architecture: str, canonical: str, num_layers: int | None = None) -> str | None:
    """Return the GGUF name of a canonical one, None where the architecture has no row for it."""
    if num_layers is not None and canonical.startswith("mtp."):
        draft = _DRAFT_LAYER.match(canonical)
        if draft is None:
            stem = canonical.removeprefix("mtp.").removesuffix(".weight")
            names = {value: key for key, value in DRAFT_NAMES.items()}
            return f"blk.{num_layers}.nextn.{names[stem]}.weight" if stem in names else None
        canonical = f"model.layers.{num_layers + int(draft[1])}.{canonical[draft.end() :]}"
    whole = {value: key for key, value in WHOLE_NAMES.get(architecture, {}).items()}
    rows = {value: key for key, value in TENSOR_NAMES.get(architecture, {}).items()}
    return _whole(whole, canonical) or _translate(rows, canonical)


def has_linear_mark(gguf_name: str, names: Container[str]) -> bool:
    """Return whether the layer of a tensor has linear attention, by the names of a file."""
    layer = _LAYER.match(gguf_name)
    return layer is not None and LINEAR_MARK.replace("{i}", layer[2]) in names


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


def _whole(rows: dict[str, str], name: str) -> str | None:
    layer = _LAYER.match(name)
    row = None if layer is None else rows.get(_any_layer(name, layer))
    return None if row is None or layer is None else row.replace("{i}", layer[2])


def fused_experts_stem(architecture: str, gguf_name: str) -> str | None:
    """Return the canonical prefix where the tensor is a fused gate and up of experts, else None.

    ``model.layers.3.mlp.experts.`` + ``gate_proj`` + ``.weight`` is then one of the two names.
    """
    row = FUSED_EXPERTS.get(architecture)
    name = row and _translate({row: "model.layers.{i}.mlp.experts."}, gguf_name)
    return name.removesuffix(".weight") if name and name.endswith(".weight") else None


def _any_layer(name: str, layer: re.Match[str]) -> str:
    return f"{layer[1]}.{{i}}.{name[layer.end() :]}"


def _translate(rows: dict[str, str], name: str) -> str | None:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            layer = _LAYER.match(stem)
            row = rows.get(stem if layer is None else _any_layer(stem, layer))
            if row is None or ("{i}" in row) != bool(layer):
                return None
            return row.replace("{i}", layer[2] if layer else "") + suffix
    return None
