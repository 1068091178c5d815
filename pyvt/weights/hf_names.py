"""One name a tensor: what to drop and rename in the names of Hugging Face checkpoints (data only).

Wrappers for images keep the text model under another prefix, and releases differ in where they put
the head and the draft layers. Rules apply in order, each at most once.
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
    (re.compile(r"(\.mlp\.experts\.(?:gate_up|down)_proj)\.weight$"), r"\1"),
)


def canonical_hf_name(name: str) -> str | None:
    """Return the canonical name of a stored tensor, None for one that text models do not use."""
    if any(pattern.search(name) for pattern in DROPPED):
        return None
    for pattern, replacement in RENAMES:
        name = pattern.sub(replacement, name)
    return name
