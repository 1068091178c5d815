"""Qwen3.5 and Qwen3.6, and Qwen3-Next: hybrids of linear attention and gated attention.

Three of four layers have a gated delta net, every fourth has attention with an output gate; only
the first dims of a head turn. They differ by their MLPs, plain or of experts, and by how a
checkpoint stores the projections of linear attention. The vision towers are not read.

Source: transformers ``Qwen3_5ForConditionalGeneration``, ``Qwen3NextForCausalLM``.
"""

from pyvt.models.decoder import DecoderForCausalLM


class Qwen3_5ForConditionalGeneration(DecoderForCausalLM):
    """A hybrid with a plain MLP in each layer."""


class Qwen3_5MoeForConditionalGeneration(DecoderForCausalLM):
    """A hybrid with experts in each layer, and one expert that all tokens get."""


class Qwen3NextForCausalLM(DecoderForCausalLM):
    """The older one, with fused projections; layers may have a plain MLP."""
