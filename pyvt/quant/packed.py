"""Weights that a backend has laid out for its kernels.

Dims: N outputs, K inputs, ``...`` any leading dims.
"""

from pyvt import ops
from pyvt.ops.numerics import Array
from pyvt.quant.base import WeightSettings
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.weights.param import Weight


class PackedMethod:
    """Multiplies by tiles; ``act`` says whether activations are quantized before blocks."""

    __slots__ = ("_act", "_weight")

    def __init__(self, weight: Weight, settings: WeightSettings) -> None:
        assert isinstance(weight, PackedTensor), "other weights belong to other methods"
        self._weight = weight
        has_codes = weight.dtype.is_block and weight.dtype.has_codes
        self._act = settings.act if has_codes else "none"

    def apply(self, x: Array, bias: Array | None, *, out: Array | None = None) -> Array:
        """Return ``x · weightᵀ + bias`` ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        return ops.packed_linear(x, self._weight, bias, act=self._act, out=out)
