"""Qwen3-MoE: Qwen3 whose layers have experts in place of one MLP, all or some of them.

Source: Yang et al. 2025, arXiv:2505.09388; transformers ``Qwen3MoeForCausalLM``.
"""

from pyvt.models.decoder import DecoderForCausalLM


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """q/k norm, sparse layers as the config says; a sliding window is for all layers."""
