"""RMSNorm.

Dims: H normed size, ``...`` any leading dims.
"""

from pyvt import ops
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.weights.param import VECTOR, Parameter, ParamSlot


class RMSNorm(Module):
    """Root-mean-square norm with a plain weight."""

    def __init__(self, size: int, eps: float) -> None:
        self.weight = Parameter(VECTOR, ParamSlot("weight", (size,)))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        """Return the norm of ``x`` ``[..., H]``."""
        return ops.rms_norm(x, self.weight.array, self.eps)

    def add(self, x: Array, residual: Array) -> Array:
        """Add ``x`` into ``residual`` in place and return the norm of the sum."""
        return ops.fused_add_rms_norm(x, residual, self.weight.array, self.eps)
