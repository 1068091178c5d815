"""Plain float weights.

Dims: N outputs, K inputs, ``...`` any leading dims.
"""

from pyvt import ops
from pyvt.ops.numerics import Array
from pyvt.quant.base import WeightSettings
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.param import Weight


class UnquantizedMethod:
    """Multiplies by a plain array of any float dtype."""

    __slots__ = ("_weight",)

    def __init__(self, weight: Weight, settings: WeightSettings) -> None:
        assert not isinstance(weight, QuantTensor | PackedTensor), (
            "other weights belong to other methods"
        )
        self._weight = weight

    def apply(self, x: Array, bias: Array | None, *, out: Array | None = None) -> Array:
        """Return ``x · weightᵀ + bias`` ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        return ops.linear(x, self._weight, bias, out=out)
