"""The op library: every public op, with its contract; NumPy arrays in, NumPy arrays out."""

from pyvt.ops.norm import fused_add_rms_norm, rms_norm

__all__ = ["fused_add_rms_norm", "rms_norm"]
