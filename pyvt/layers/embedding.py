"""Token embedding.

A tied table is kept once: prepacked for the logits, it is looked up in as packed too.

Dims: T tokens, V vocabulary, H hidden size.
"""

from pyvt import ops
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.quant import LinearMethod, WeightSettings, linear_method
from pyvt.tensor.dtype import F32, DType
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.param import TABLE, TIED, Parameter, ParamSlot


class Embedding(Module):
    """Rows of a table by token id; a tied model multiplies by the same table for its logits."""

    def __init__(self, vocab_size: int, hidden_size: int, *, is_tied: bool = False) -> None:
        role = TIED if is_tied else TABLE
        self.weight = Parameter(role, ParamSlot("weight", (vocab_size, hidden_size)))
        self._dtype: DType = F32
        self._method: LinearMethod | None = None

    def after_load(self, settings: WeightSettings) -> None:
        """Keep the dtype of the residual stream; choose the method of a tied table."""
        self._dtype = settings.wide_dtype
        if self.weight.role == TIED:
            self._method = linear_method(self.weight.data, settings)

    def __call__(self, input_ids: Array) -> Array:
        """Return rows ``[T, H]`` in the dtype that residuals are kept in."""
        table = self.weight.data
        if isinstance(table, PackedTensor):
            return ops.packed_embedding(input_ids, table, dtype=self._dtype.name)
        if isinstance(table, QuantTensor):
            return ops.quant_embedding(input_ids, table, dtype=self._dtype.name)
        return ops.embedding(input_ids, table, dtype=self._dtype.name)

    def as_linear(self, x: Array) -> Array:
        """Return ``x · weightᵀ`` ``[..., V]``."""
        assert self._method is not None, "only a tied table is multiplied by"
        return self._method.apply(x, None)
