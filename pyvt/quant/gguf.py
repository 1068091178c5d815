"""GGUF blocks, multiplied as they are stored.

Dims: N outputs, K inputs, ``...`` any leading dims.
"""

from pyvt import ops
from pyvt.ops.numerics import Array
from pyvt.quant.base import WeightSettings
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.param import Weight


class GGUFMethod:
    """Multiplies by packed blocks; ``act`` says whether activations are quantized first."""

    __slots__ = ("_act", "_weight")

    def __init__(self, weight: Weight, settings: WeightSettings) -> None:
        assert isinstance(weight, QuantTensor), "other weights belong to other methods"
        self._weight = weight
        self._act = settings.act if weight.dtype.has_codes else "none"

    def apply(self, x: Array, bias: Array | None, *, out: Array | None = None) -> Array:
        """Return ``x · weightᵀ + bias`` ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        return ops.quant_linear(x, self._weight, bias, act=self._act, out=out)
