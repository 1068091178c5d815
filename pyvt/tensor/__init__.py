"""Storage and views of tensors; no arithmetic."""

from pyvt.tensor.dtype import DType, dtype_named, dtype_of
from pyvt.tensor.quant_tensor import QuantTensor

__all__ = ["DType", "QuantTensor", "dtype_named", "dtype_of"]
