"""Rows of an embedding matrix.

Dims: T tokens, V vocabulary size, H hidden size.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, round_into
from pyvt.ops.quant_gguf import quant_embedding
from pyvt.tensor.dtype import FLOATS, I32, I64, DType
from pyvt.tensor.quant_tensor import QuantTensor

EMBEDDING = declare("embedding")


def embedding(
    input_ids: Array,
    weight: Array | QuantTensor,
    *,
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Array:
    """Row of ``weight`` for every token id.

    ``out[t] = weight[input_ids[t]]``.

    Args:
        input_ids: ``[T]`` i32|i64, each in ``[0, V)``.
        weight: ``[V, H]`` f64|f32|bf16|f16, or packed: then ``quant_embedding`` is called, which
            decodes only the rows asked for.
        dtype: dtype of the output, or its name; None is the dtype of a plain ``weight``, f32 for a
            packed one.
        out: ``[T, H]``, ``dtype``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also for an id outside ``[0, V)``.
        DTypeError.
    """
    if isinstance(weight, QuantTensor):
        return quant_embedding(input_ids, weight, dtype="f32" if dtype is None else dtype, out=out)
    check = Check("embedding")
    check.tensor("input_ids", input_ids, "T", (I32, I64))
    check.tensor("weight", weight, "V H", FLOATS)
    check.index("input_ids", input_ids, weight.shape[0])
    to = weight.dtype if dtype is None else check.named_dtype("dtype", dtype, FLOATS)
    out = check.output(out, (input_ids.shape[0], weight.shape[1]), to)
    check.disjoint("out", out, weight=weight)
    EMBEDDING(out, input_ids, weight)
    return out


@EMBEDDING.reference
def _embedding(out: Array, input_ids: Array, weight: Array) -> None:
    round_into(out, np.take(weight, input_ids, axis=0))
