"""The protocol of linear methods, and the settings that all weights of a model share.

Dims: N outputs, K inputs, ``...`` any leading dims.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pyvt import ops
from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import F32, F64, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import joined
from pyvt.weights.param import EXPERTS, MATRIX, TIED, VECTOR, Parameter, Weight
from pyvt.weights.source import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """How the weights of a model are kept and multiplied.

    Attributes:
        dtype: dtype of activations: f32, bf16, f16, or f64 for tests of exactness.
        is_expanded: whether matrices are widened once, at load, to the dtype that sums are in.
        act: ``none`` or ``q8``: whether activations are quantized before a product with blocks.
        has_experts_in_file: whether stacks of experts stay where the file is mapped.
    """

    dtype: DType
    is_expanded: bool = True
    act: str = "none"
    has_experts_in_file: bool = False

    @property
    def wide_dtype(self) -> DType:
        """The dtype that sums are in, and that norms and residuals are kept in."""
        return F64 if self.dtype is F64 else F32

    def convert(self, tensor: Tensor, parameter: Parameter) -> Tensor:
        """Return what the model keeps of a stored tensor; the loader's hook.

        Vectors are always widened, and copied: a view would keep the file's pages around it. A
        matrix, a tied table among them, is widened where ``is_expanded``, else it stays as it is
        stored: blocks as blocks, bf16 as bf16. A table that nothing multiplies by stays as it is.
        """
        is_matrix = parameter.role in (MATRIX, EXPERTS, TIED)
        if parameter.role == VECTOR:
            return np.array(self._widened(tensor))
        if is_matrix and self.is_expanded:
            return self._widened(tensor)
        return tensor

    def prepack(self, *parts: Tensor) -> Weight:
        """Return the weight that products with these rows read; the loader's hook.

        No kernel multiplies packed weights by f64, so that a model in f64 keeps them as stored. A
        stack of experts that stays in the file is a view of it: the system reads what is used.
        """
        is_in_file = self.has_experts_in_file and len(parts) == 1 and parts[0].ndim == 3
        if self.dtype is F64 or is_in_file:
            return joined(parts)
        return ops.prepack_weight(*parts)

    def _widened(self, tensor: Tensor) -> Array:
        if isinstance(tensor, QuantTensor):
            return ops.dequantize(tensor, dtype=self.wide_dtype.name)
        return tensor.astype(self.wide_dtype.numpy, copy=False)


class LinearMethod(Protocol):
    """One way to multiply by a loaded weight; made once, after loading, by its layer."""

    def __init__(self, weight: Weight, settings: WeightSettings) -> None:
        """Keep the weight, ``[N, K]`` as stored or as prepacked."""

    def apply(self, x: Array, bias: Array | None, *, out: Array | None = None) -> Array:
        """Return ``x · weightᵀ + bias`` ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        ...
