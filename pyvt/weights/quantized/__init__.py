"""Quantized checkpoints of Hugging Face: their weights as blocks that products read.

The tensors of a module (codes, scales, zeros) become one packed weight of the usual name, laid out
anew at load without loss; which form it is, its tensors tell. Scales of activations and of a KV
cache are left out: activations stay as they are, so that W4A4 and FP8 W8A8 checkpoints run
weight-only.
"""

from pyvt.weights.quantized.scheme import QUANT_METHODS, scheme_of
from pyvt.weights.quantized.source import QuantizedSource

__all__ = ["QUANT_METHODS", "QuantizedSource", "scheme_of"]
