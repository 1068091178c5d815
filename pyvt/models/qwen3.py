"""Qwen3, dense: the plain decoder with query and key heads normed before RoPE.

Source: Yang et al. 2025, arXiv:2505.09388; transformers ``Qwen3ForCausalLM``.
"""

from pyvt.models.decoder import DecoderForCausalLM


class Qwen3ForCausalLM(DecoderForCausalLM):
    """q/k norm, a head size of its own, sliding windows where the config turns them on."""
