"""The op library: every public op, with its contract; NumPy arrays in, NumPy arrays out."""

from pyvt.ops.norm import fused_add_rms_norm, rms_norm
from pyvt.ops.quant_gguf import dequantize, quant_embedding, quant_linear, quantize_q8_rows

__all__ = [
    "fused_add_rms_norm",
    "rms_norm",
    "dequantize",
    "quant_embedding",
    "quant_linear",
    "quantize_q8_rows",
]
