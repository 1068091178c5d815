"""RMSNorm.

Dims: H normed size, ``...`` any leading dims.
"""

from pyvt import ops
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings
from pyvt.weights.param import VECTOR, Parameter, ParamSlot


class RMSNorm(Module):
    """Root-mean-square norm; ``offset`` is what the checkpoint leaves out of the weight."""

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        self.weight = Parameter(VECTOR, ParamSlot("weight", (size,)))
        self.eps = eps
        self._offset = offset

    def after_load(self, settings: WeightSettings) -> None:
        """Make the weight whole."""
        if self._offset:
            self.weight.parts = (self.weight.array + self.weight.array.dtype.type(self._offset),)

    def __call__(self, x: Array) -> Array:
        """Return the norm of ``x`` ``[..., H]``."""
        return ops.rms_norm(x, self.weight.array, self.eps)

    def add(self, x: Array, residual: Array) -> Array:
        """Add ``x`` into ``residual`` in place and return the norm of the sum."""
        return ops.fused_add_rms_norm(x, residual, self.weight.array, self.eps)
