"""Qwen3.5 and Qwen3.6, and Qwen3-Next: hybrids of linear attention and gated attention.

Three of four layers have a gated delta net, every fourth has attention with an output gate; only
the first dims of a head turn. Qwen3-Next differs by how its projections are stored.

Source: Qwen team 2025, "Qwen3-Next"; transformers ``Qwen3_5ForCausalLM``, ``Qwen3NextForCausalLM``.
"""

from pyvt.models.decoder import DecoderForCausalLM


class Qwen3_5ForCausalLM(DecoderForCausalLM):
    """A hybrid with a dense MLP in each layer, or with experts."""
