"""The metadata of a GGUF file, from a model's config: one table of keys, and more by family.

A row is a key behind the architecture's prefix and the value of a config; None leaves the key out.

Source: ``gguf.constants.Keys``; the converter of llama.cpp.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyvt.config.hybrid import LinearAttentionConfig
from pyvt.config.model import ModelConfig
from pyvt.config.moe import MoEConfig
from pyvt.config.rope import RopeConfig
from pyvt.errors import UnsupportedError
from pyvt.layers.rotary import inverse_frequencies

Value = Callable[[ModelConfig], Any]

QUANTIZATION_VERSION = 2
ROPE_FREQS = "rope_freqs.weight"
# Files of this many entries hold the rope's divisors; llama3 has no name of its own in GGUF.
_SCALED = ("linear", "yarn")


def _scaling(value: Callable[[RopeConfig], Any], *types: str) -> Value:
    """Return a row's value for some types of RoPE scaling, None for the others."""
    return lambda config: value(config.rope) if config.rope.rope_type in types else None


def _attention_factor(rope: RopeConfig) -> float | None:
    """Return what readers multiply yarn's own factor of cos and sin by, None for 1."""
    own = 1.0 if rope.factor <= 1 else 0.1 * float(np.log(rope.factor)) + 1.0
    ratio = rope.attention_factor / own
    return None if abs(ratio - 1) < 1e-6 else ratio


KEYS: Mapping[str, Value] = {
    "vocab_size": lambda config: config.vocab_size,
    "block_count": lambda config: config.num_layers + config.num_mtp_layers,
    "context_length": lambda config: config.max_position_embeddings,
    "embedding_length": lambda config: config.hidden_size,
    "feed_forward_length": lambda config: config.intermediate_size,
    "attention.head_count": lambda config: config.num_heads,
    "attention.head_count_kv": lambda config: config.num_kv_heads,
    "attention.key_length": lambda config: config.head_dim,
    "attention.value_length": lambda config: config.head_dim,
    "attention.layer_norm_rms_epsilon": lambda config: float(config.rms_norm_eps),
    "rope.dimension_count": lambda config: config.rope.rotary_dim,
    "rope.freq_base": lambda config: float(config.rope.theta),
    "rope.scaling.type": _scaling(lambda rope: rope.rope_type, *_SCALED),
    "rope.scaling.factor": _scaling(lambda rope: float(rope.factor), *_SCALED),
    "rope.scaling.original_context_length": _scaling(
        lambda rope: rope.original_max_position_embeddings, "yarn"
    ),
    "rope.scaling.yarn_beta_fast": _scaling(lambda rope: float(rope.beta_fast), "yarn"),
    "rope.scaling.yarn_beta_slow": _scaling(lambda rope: float(rope.beta_slow), "yarn"),
    "rope.scaling.attn_factor": _scaling(_attention_factor, "yarn"),
}


def _of_experts(value: Callable[[MoEConfig], Any]) -> Value:
    """Return a row's value for a model with experts, None for others."""
    return lambda config: None if config.moe is None else value(config.moe)


EXPERT_KEYS: Mapping[str, Value] = {
    "expert_count": _of_experts(lambda moe: moe.num_experts),
    "expert_used_count": _of_experts(lambda moe: moe.num_experts_per_tok),
    "expert_feed_forward_length": _of_experts(lambda moe: moe.moe_intermediate_size),
    "expert_shared_feed_forward_length": _of_experts(
        lambda moe: moe.shared_expert_intermediate_size
    ),
}


def _of_linear(value: Callable[[LinearAttentionConfig], Any]) -> Value:
    """Return a row's value for a model with linear attention, None for others."""
    return lambda config: (
        None if config.linear_attention is None else value(config.linear_attention)
    )


def _linear_flags(config: ModelConfig) -> list[bool]:
    """Return whether each block has linear attention; those of the draft head have none."""
    num_blocks = config.num_layers + config.num_mtp_layers
    return [i in config.linear_layers for i in range(num_blocks)]


def _rope_sections(config: ModelConfig) -> list[int]:
    """Return how many frequencies turn by each of three positions, which are equal for text."""
    return [(config.rope.rotary_dim // 2 + 2 - i) // 3 for i in range(3)] + [0]


HYBRID_KEYS: Mapping[str, Value] = {
    "nextn_predict_layers": lambda config: config.num_mtp_layers or None,
    "ssm.conv_kernel": _of_linear(lambda linear: linear.conv_kernel),
    "ssm.state_size": _of_linear(lambda linear: linear.key_head_dim),
    "ssm.group_count": _of_linear(lambda linear: linear.num_key_heads),
    "ssm.time_step_rank": _of_linear(lambda linear: linear.num_value_heads),
    "ssm.inner_size": _of_linear(lambda linear: linear.value_size),
    "attention.recurrent_layers": _linear_flags,
}
_SECTIONS: Mapping[str, Value] = {"rope.dimension_sections": _rope_sections}
# Keys of one architecture, on top of those of all.
FAMILY_KEYS: Mapping[str, Mapping[str, Value]] = {
    "qwen3moe": EXPERT_KEYS,
    "qwen35": {**HYBRID_KEYS, **_SECTIONS},
    "qwen35moe": {**HYBRID_KEYS, **EXPERT_KEYS, **_SECTIONS},
    "qwen3next": {**HYBRID_KEYS, **EXPERT_KEYS},
}


def model_metadata(config: ModelConfig, architecture: str) -> dict[str, Any]:
    """Return the keys of a model with their values, behind the name of its architecture.

    Raises UnsupportedError for a model that GGUF has no keys for.
    """
    if any(window is not None for window in config.sliding_windows):
        raise UnsupportedError(
            "[quantize] sliding_window: expected full attention in every layer, got windows, for "
            f"which {architecture} files have no keys"
        )
    if config.rope.rope_type == "yarn" and not config.rope.truncate:
        raise UnsupportedError(
            "[quantize] rope_parameters.truncate: expected true for yarn, got false, for which "
            "GGUF has no key"
        )
    if config.moe is not None and not config.moe.norm_topk_prob:
        raise UnsupportedError(
            "[quantize] norm_topk_prob: expected true, got false; readers of GGUF always make the "
            "weights of experts add up to 1"
        )
    rows = {**KEYS, **FAMILY_KEYS.get(architecture, {})}
    values = {f"{architecture}.{key}": value(config) for key, value in rows.items()}
    return {key: value for key, value in values.items() if value is not None}


def rope_divisors(config: ModelConfig) -> "np.ndarray[Any, np.dtype[np.float32]] | None":
    """Return the content of ``rope_freqs.weight``, ``[R/2]`` divisors, None where none is due."""
    rope = config.rope
    if rope.rope_type != "llama3":
        return None
    plain = rope.theta ** -(np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)
    return (plain / inverse_frequencies(rope)).astype(np.float32)
