"""One name a tensor: what to drop and rename in the names of Hugging Face checkpoints (data only).

Wrappers for images keep the text model under another prefix, and releases differ in where they put
the head and the draft layers. Rules apply in order, each at most once.

Experts are one tensor each, ``experts.7.gate_proj.weight``, or stacks of all of a layer; of these
gate and up may be one, ``experts.gate_up_proj``, the rows of an expert's gate before those of its
up. It is read as two.
"""

import re

DROPPED = (
    re.compile(r"(^|\.)visual\."),  # the vision tower
    re.compile(r"(^|\.)rotary_emb\.inv_freq$"),  # computed from the config
)
RENAMES = (
    (re.compile(r"^model\.language_model\."), "model."),
    (re.compile(r"^language_model\.model\."), "model."),
    (re.compile(r"^language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^model\.lm_head\."), "lm_head."),
    (re.compile(r"^model\.mtp\."), "mtp."),
    (re.compile(r"(\.mlp\.experts\.(?:gate_up|gate|up|down)_proj)$"), r"\1.weight"),
)
_FUSED_EXPERTS = ".mlp.experts.gate_up_proj.weight"


def canonical_hf_name(name: str) -> str | None:
    """Return the canonical name of a stored tensor, None for one that text models do not use."""
    if any(pattern.search(name) for pattern in DROPPED):
        return None
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name


def fused_experts_names(name: str) -> tuple[str, str] | None:
    """Return the canonical names of gate and up where ``name`` is both, None for others."""
    if not name.endswith(_FUSED_EXPERTS):
        return None
    prefix = name.removesuffix(_FUSED_EXPERTS)
    return f"{prefix}.mlp.experts.gate_proj.weight", f"{prefix}.mlp.experts.up_proj.weight"
