"""Llama 2 and 3.x, and SmolLM2: the plain decoder.

Source: Touvron et al. 2023, arXiv:2302.13971; transformers ``LlamaForCausalLM``.
"""

from pyvt.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """No q/k norm; biases and RoPE scaling as the config says."""
