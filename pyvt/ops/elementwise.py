"""Arithmetic on each element, and the order of elements in a row.

``...`` stands for any dims.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import FLOATS, FP8_E4M3, FP8_E5M2, I32, I64, DType

ADD = declare("add")
MUL = declare("mul")
SCALE = declare("scale")
CAST = declare("cast")
SOFT_CAP = declare("soft_cap")
TAKE_COLUMNS = declare("take_columns")

_CASTABLE = (*FLOATS, FP8_E4M3, FP8_E5M2)
_E4M3_MAX = 448.0


def add(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """Sum of two tensors of one shape, in the dtype of the first.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        y: ``[...]``, the shape of ``x``, any float dtype.
        out: ``[...]``, the dtype of ``x``; may be ``x`` or ``y``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    check = Check("add")
    check.tensor("x", x, "...", FLOATS)
    check.tensor("y", y, "...", FLOATS)
    check.same_shape("y", y, "x", x)
    out = check.output(out, x.shape, x.dtype)
    ADD(out, x, y)
    return out


@ADD.reference
def _add(out: Array, x: Array, y: Array) -> None:
    round_into(out, np.add(x, y, dtype=accum_dtype(x, y)))


def mul(x: Array, y: Array, *, out: Array | None = None) -> Array:
    """Product of two tensors of one shape, element by element, in the dtype of the first.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        y: ``[...]``, the shape of ``x``, any float dtype.
        out: ``[...]``, the dtype of ``x``; may be ``x`` or ``y``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    check = Check("mul")
    check.tensor("x", x, "...", FLOATS)
    check.tensor("y", y, "...", FLOATS)
    check.same_shape("y", y, "x", x)
    out = check.output(out, x.shape, x.dtype)
    MUL(out, x, y)
    return out


@MUL.reference
def _mul(out: Array, x: Array, y: Array) -> None:
    round_into(out, np.multiply(x, y, dtype=accum_dtype(x, y)))


def scale(x: Array, factor: float, *, out: Array | None = None) -> Array:
    """Product of a tensor and a number.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        factor: rounded to the accumulation dtype, f64 for an f64 ``x``, else f32.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    check = Check("scale")
    check.tensor("x", x, "...", FLOATS)
    check.number("factor", factor)
    out = check.output(out, x.shape, x.dtype)
    SCALE(out, x, factor)
    return out


@SCALE.reference
def _scale(out: Array, x: Array, factor: float) -> None:
    accum = accum_dtype(x)
    round_into(out, np.multiply(x, accum.type(factor), dtype=accum))


def cast(x: Array, dtype: DType | str, *, out: Array | None = None) -> Array:
    """Copy of a tensor in another float dtype, rounded once to nearest even.

    A value beyond the range of ``dtype`` becomes an infinity; fp8_e4m3 has none, so there it
    becomes the largest finite value, 448 or -448. NaN stays NaN.

    Args:
        x: ``[...]`` f64|f32|bf16|f16|fp8_e4m3|fp8_e5m2.
        dtype: one of the dtypes of ``x``, or its name.
        out: ``[...]``, ``dtype``; may be ``x`` where the dtypes are equal.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: OCP 8-bit Floating Point Specification 1.0; torch ``Tensor.to``.
    """
    check = Check("cast")
    check.tensor("x", x, "...", _CASTABLE)
    out = check.output(out, x.shape, check.named_dtype("dtype", dtype, _CASTABLE))
    CAST(out, x)
    return out


@CAST.reference
def _cast(out: Array, x: Array) -> None:
    if out.dtype == FP8_E4M3.numpy:
        x = np.clip(x.astype(accum_dtype(x)), -_E4M3_MAX, _E4M3_MAX)
    round_into(out, x)


def soft_cap(x: Array, cap: float, *, out: Array | None = None) -> Array:
    """Squash values smoothly into ``(-cap, cap)``.

    ``out = cap * tanh(x / cap)``.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        cap: a finite number above 0.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Gemma 2, arXiv:2408.00118, section 2.
    """
    check = Check("soft_cap")
    check.tensor("x", x, "...", FLOATS)
    check.number("cap", cap)
    if not 0 < cap < np.inf:
        raise check.fail("cap", "a finite number above 0", cap)
    out = check.output(out, x.shape, x.dtype)
    SOFT_CAP(out, x, cap)
    return out


@SOFT_CAP.reference
def _soft_cap(out: Array, x: Array, cap: float) -> None:
    accum = accum_dtype(x)
    round_into(out, np.tanh(x.astype(accum) / accum.type(cap)) * accum.type(cap))


def take_columns(x: Array, columns: Array, *, out: Array | None = None) -> Array:
    """Columns of every row in another order: ``out[..., j] = x[..., columns[j]]``.

    Args:
        x: ``[..., K]`` f64|f32|bf16|f16.
        columns: ``[C]`` i32|i64, each in ``[0, K)``.
        out: ``[..., C]``, the dtype of ``x``; shares no memory with ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also for a column outside ``[0, K)``.
        DTypeError.
    """
    check = Check("take_columns")
    check.tensor("x", x, "... K", FLOATS)
    check.tensor("columns", columns, "C", (I32, I64))
    check.index("columns", columns, x.shape[-1])
    out = check.output(out, (*x.shape[:-1], len(columns)), x.dtype)
    check.disjoint("out", out, x=x, columns=columns)
    TAKE_COLUMNS(out, x, columns)
    return out


@TAKE_COLUMNS.reference
def _take_columns(out: Array, x: Array, columns: Array) -> None:
    out[...] = np.take(x, columns, axis=-1)
