"""Storage and views of tensors; no arithmetic."""

from pyvt.tensor.dtype import DType, as_dtype, dtype_named, dtype_of
from pyvt.tensor.quant_tensor import QuantTensor

__all__ = ["DType", "QuantTensor", "as_dtype", "dtype_named", "dtype_of"]
