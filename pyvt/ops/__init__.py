"""The op library: every public op, with its contract; NumPy arrays in, NumPy arrays out."""

from pyvt.dispatch.backend import from_dlpack
from pyvt.ops.activation import (
    gelu,
    gelu_and_mul,
    relu,
    sigmoid,
    sigmoid_gate,
    silu,
    silu_and_mul,
)
from pyvt.ops.attention import merge_attn_states, paged_attention
from pyvt.ops.causal_conv import causal_conv1d
from pyvt.ops.elementwise import add, cast, mul, scale, soft_cap, take_columns
from pyvt.ops.embedding import embedding
from pyvt.ops.gated_delta import gated_delta_net, gated_delta_rule, gdn_gate
from pyvt.ops.kv_cache import (
    copy_blocks,
    gather_blocks,
    reshape_and_cache,
    rotate_and_cache,
    scatter_blocks,
)
from pyvt.ops.linear import linear
from pyvt.ops.logprobs import log_softmax, top_logprobs
from pyvt.ops.moe import add_shared_expert, fused_experts, router_topk
from pyvt.ops.norm import fused_add_rms_norm, l2_norm, rms_norm, rms_norm_gated
from pyvt.ops.packed import packed_embedding, packed_linear, prepack_weight
from pyvt.ops.penalties import (
    apply_allowed_ids,
    apply_banned_ids,
    apply_logit_bias,
    apply_penalties,
    apply_token_mask,
)
from pyvt.ops.quant_gguf import dequantize, quant_embedding, quant_linear, quantize_q8_rows
from pyvt.ops.rope import rope_cos_sin, rotary_embedding
from pyvt.ops.sampling import (
    MIN_TEMPERATURE,
    NO_TOKEN,
    apply_min_p,
    apply_temperature,
    apply_top_k_top_p,
    argmax,
    count_nonfinite,
    random_sample,
    rejection_sample,
)

__all__ = [
    "MIN_TEMPERATURE",
    "NO_TOKEN",
    "add",
    "add_shared_expert",
    "apply_allowed_ids",
    "apply_banned_ids",
    "apply_logit_bias",
    "apply_min_p",
    "apply_penalties",
    "apply_temperature",
    "apply_token_mask",
    "apply_top_k_top_p",
    "argmax",
    "cast",
    "causal_conv1d",
    "copy_blocks",
    "count_nonfinite",
    "dequantize",
    "embedding",
    "from_dlpack",
    "fused_add_rms_norm",
    "fused_experts",
    "gather_blocks",
    "gated_delta_net",
    "gated_delta_rule",
    "gdn_gate",
    "gelu",
    "gelu_and_mul",
    "l2_norm",
    "linear",
    "log_softmax",
    "merge_attn_states",
    "mul",
    "packed_embedding",
    "packed_linear",
    "paged_attention",
    "prepack_weight",
    "quant_embedding",
    "quant_linear",
    "quantize_q8_rows",
    "random_sample",
    "rejection_sample",
    "relu",
    "reshape_and_cache",
    "rms_norm",
    "rms_norm_gated",
    "rope_cos_sin",
    "rotary_embedding",
    "rotate_and_cache",
    "router_topk",
    "scale",
    "scatter_blocks",
    "sigmoid",
    "sigmoid_gate",
    "silu",
    "silu_and_mul",
    "soft_cap",
    "take_columns",
    "top_logprobs",
]
