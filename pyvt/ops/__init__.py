"""The op library: every public op, with its contract; NumPy arrays in, NumPy arrays out."""

from pyvt.ops.activation import gelu, gelu_and_mul, relu, sigmoid, silu, silu_and_mul
from pyvt.ops.elementwise import add, cast, mul, scale, soft_cap
from pyvt.ops.embedding import embedding
from pyvt.ops.linear import linear
from pyvt.ops.norm import fused_add_rms_norm, rms_norm
from pyvt.ops.rope import rope_cos_sin, rotary_embedding

__all__ = [
    "add",
    "cast",
    "mul",
    "scale",
    "soft_cap",
    "gelu",
    "gelu_and_mul",
    "relu",
    "sigmoid",
    "silu",
    "silu_and_mul",
    "embedding",
    "linear",
    "fused_add_rms_norm",
    "rms_norm",
    "rope_cos_sin",
    "rotary_embedding",
]
