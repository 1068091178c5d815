"""Products with a plain weight matrix.

Dims: K input features, N output features. ``...`` stands for any leading dims.
"""

import math

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import FLOATS

LINEAR = declare("linear")

# Elements of a weight that are widened at a time: 4 MiB in f32, small enough for a cache.
_TILE_ELEMENTS = 1 << 20


def linear(
    x: Array, weight: Array, bias: Array | None = None, *, out: Array | None = None
) -> Array:
    """Product with a transposed weight, plus a bias; sums in f32, or f64 for an f64 input.

    ``out = x @ weight.T + bias``, rounded once at the end.

    Args:
        x: ``[..., K]`` f64|f32|bf16|f16.
        weight: ``[N, K]`` f64|f32|bf16|f16, also another dtype than that of ``x``. A weight of
            the accumulation dtype is read in place, any other is widened by tiles of rows.
        bias: ``[N]`` f64|f32|bf16|f16, or None.
        out: ``[..., N]``, the dtype of ``x``; shares no memory with an input.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    check = Check("linear")
    check.tensor("x", x, "... K", FLOATS)
    check.tensor("weight", weight, "N K", FLOATS)
    check.optional("bias", bias, "N", FLOATS)
    out = check.output(out, (*x.shape[:-1], weight.shape[0]), x.dtype)
    check.disjoint("out", out, x=x, weight=weight, bias=bias)
    LINEAR(out, x, weight, bias)
    return out


@LINEAR.reference
def _linear(out: Array, x: Array, weight: Array, bias: Array | None) -> None:
    accum = accum_dtype(x, weight)
    shape = (math.prod(x.shape[:-1]), weight.shape[0])
    rows = np.ascontiguousarray(x, accum).reshape(shape[0], x.shape[-1])
    is_direct = out.dtype == accum and out.flags.c_contiguous
    product = out.reshape(shape) if is_direct else np.empty(shape, accum)
    _matmul_transposed(product, rows, weight)
    if bias is not None:
        product += bias.astype(accum)
    if not is_direct:
        round_into(out, product.reshape(out.shape))


def _matmul_transposed(product: Array, rows: Array, weight: Array) -> None:
    """Write ``rows @ weight.T``; BLAS takes a weight of the same dtype with one unit stride."""
    if weight.dtype == rows.dtype and (weight.flags.c_contiguous or weight.flags.f_contiguous):
        np.matmul(rows, weight.T, out=product)
        return
    num_outputs, num_inputs = weight.shape
    tile = max(1, _TILE_ELEMENTS // max(1, num_inputs))
    for start in range(0, num_outputs, tile):
        wide = weight[start : start + tile].astype(rows.dtype, order="C")
        np.matmul(rows, wide.T, out=product[:, start : start + tile])
