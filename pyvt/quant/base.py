"""The protocol of linear methods, and the settings that all weights of a model share.

Dims: N outputs, K inputs, ``...`` any leading dims.
"""

from dataclasses import dataclass
from typing import Protocol

from pyvt import ops
from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import F32, F64, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.param import MATRIX, VECTOR, Parameter
from pyvt.weights.source import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """How the weights of a model are kept and multiplied.

    Attributes:
        dtype: dtype of activations: f32, bf16, f16, or f64 for tests of exactness.
        is_expanded: whether matrices are widened once, at load, to the dtype that sums are in.
        act: ``none`` or ``q8``: whether activations are quantized before a product with blocks.
    """

    dtype: DType
    is_expanded: bool = True
    act: str = "none"

    @property
    def wide_dtype(self) -> DType:
        """The dtype that sums are in, and that norms and residuals are kept in."""
        return F64 if self.dtype is F64 else F32

    def convert(self, tensor: Tensor, parameter: Parameter) -> Tensor:
        """Return what the model keeps of a stored tensor; the loader's hook.

        Vectors are always widened. A matrix is widened where ``is_expanded``, else it stays as it
        is stored: blocks as blocks, bf16 as bf16. A table stays as it is.
        """
        if parameter.role == VECTOR or (parameter.role == MATRIX and self.is_expanded):
            return self._widened(tensor)
        return tensor

    def _widened(self, tensor: Tensor) -> Array:
        if isinstance(tensor, QuantTensor):
            return ops.dequantize(tensor, dtype=self.wide_dtype.name)
        return tensor.astype(self.wide_dtype.numpy, copy=False)


class LinearMethod(Protocol):
    """One way to multiply by a loaded weight; made once, after loading, by its layer."""

    def __init__(self, weight: Tensor, settings: WeightSettings) -> None:
        """Keep the weight, ``[N, K]`` plain or packed."""

    def apply(self, x: Array, bias: Array | None) -> Array:
        """Return ``x · weightᵀ + bias`` ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        ...
