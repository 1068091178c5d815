"""The op library: every public op, with its contract; NumPy arrays in, NumPy arrays out."""

from pyvt.ops.attention import merge_attn_states, paged_attention
from pyvt.ops.kv_cache import copy_blocks, gather_blocks, reshape_and_cache, scatter_blocks
from pyvt.ops.logprobs import log_softmax, top_logprobs
from pyvt.ops.norm import fused_add_rms_norm, rms_norm
from pyvt.ops.penalties import (
    apply_allowed_ids,
    apply_banned_ids,
    apply_logit_bias,
    apply_penalties,
    apply_token_mask,
)
from pyvt.ops.sampling import (
    MIN_TEMPERATURE,
    NO_TOKEN,
    apply_min_p,
    apply_temperature,
    apply_top_k_top_p,
    argmax,
    count_nonfinite,
    random_sample,
)

__all__ = [
    "MIN_TEMPERATURE",
    "NO_TOKEN",
    "apply_allowed_ids",
    "apply_banned_ids",
    "apply_logit_bias",
    "apply_min_p",
    "apply_penalties",
    "apply_temperature",
    "apply_token_mask",
    "apply_top_k_top_p",
    "argmax",
    "copy_blocks",
    "count_nonfinite",
    "fused_add_rms_norm",
    "gather_blocks",
    "log_softmax",
    "merge_attn_states",
    "paged_attention",
    "random_sample",
    "reshape_and_cache",
    "rms_norm",
    "scatter_blocks",
    "top_logprobs",
]
