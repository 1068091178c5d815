"""Norms over the last axis.

Dims: T tokens, H hidden size, D head size. ``...`` stands for any leading dims.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import FLOATS

RMS_NORM = declare("rms_norm")
FUSED_ADD_RMS_NORM = declare("fused_add_rms_norm", num_outputs=2, composite=("add", "rms_norm"))
RMS_NORM_GATED = declare("rms_norm_gated", composite=("rms_norm", "silu", "mul"))
L2_NORM = declare("l2_norm")


def rms_norm(x: Array, weight: Array, eps: float, *, out: Array | None = None) -> Array:
    """Root-mean-square norm over the last axis; sums in f32, output in the dtype of ``x``.

    ``out = x / sqrt(mean(x², axis=-1) + eps) * weight``, rounded once at the end.

    Args:
        x: ``[..., H]`` f64|f32|bf16|f16.
        weight: ``[H]``, the dtype of ``x``, f32 or f64.
        eps: added to the mean square, at least 0.
        out: ``[..., H]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467; vLLM ``RMSNorm.forward_native``.
    """
    check = Check("rms_norm")
    check.tensor("x", x, "... H", FLOATS)
    check.tensor("weight", weight, "H", FLOATS)
    check.number("eps", eps, low=0)
    out = check.output(out, x.shape, x.dtype)
    RMS_NORM(out, x, weight, eps)
    return out


@RMS_NORM.reference
def _rms_norm(out: Array, x: Array, weight: Array, eps: float) -> None:
    accum = accum_dtype(x, weight)
    wide = x.astype(accum)
    mean_square = np.mean(np.square(wide), axis=-1, keepdims=True)
    round_into(out, wide / np.sqrt(mean_square + accum.type(eps)) * weight.astype(accum))


def fused_add_rms_norm(
    x: Array, residual: Array, weight: Array, eps: float, *, out: Array | None = None
) -> Array:
    """Add ``x`` into ``residual``, then take the root-mean-square norm of the sum.

    ``residual += x; out = rms_norm(residual, weight, eps)``. The sum is rounded into ``residual``
    before it is normed.

    Args:
        x: ``[..., H]`` f64|f32|bf16|f16.
        residual: ``[..., H]``, the dtype of ``x`` or f32; overwritten with the sum; shares no
            memory with other arguments.
        weight: ``[H]`` f64|f32|bf16|f16.
        eps: added to the mean square, at least 0.
        out: ``[..., H]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: vLLM ``fused_add_rms_norm``.
    """
    check = Check("fused_add_rms_norm")
    check.tensor("x", x, "... H", FLOATS)
    check.tensor("weight", weight, "H", FLOATS)
    check.tensor("residual", residual, "...", FLOATS)
    if residual.dtype != np.float32:
        check.same_dtype("residual", residual, "x", x)
    check.same_shape("residual", residual, "x", x)
    check.number("eps", eps, low=0)
    check.writeable("residual", residual)
    check.disjoint("residual", residual, x=x, weight=weight)
    out = check.output(out, x.shape, x.dtype)
    check.disjoint("out", out, residual=residual)
    FUSED_ADD_RMS_NORM(out, residual, x, weight, eps)
    return out


@FUSED_ADD_RMS_NORM.reference
def _fused_add_rms_norm(out: Array, residual: Array, x: Array, weight: Array, eps: float) -> None:
    accum = accum_dtype(x, residual)
    round_into(residual, np.add(residual, x, dtype=accum))
    _rms_norm(out, residual, weight, eps)


def rms_norm_gated(
    x: Array, gate: Array, weight: Array, eps: float, *, out: Array | None = None
) -> Array:
    """Root-mean-square norm over the last axis, times the SiLU of a gate.

    ``out = rms_norm(x, weight, eps) * silu(gate)``, rounded once at the end.

    Args:
        x: ``[..., H]`` f64|f32|bf16|f16.
        gate: ``[..., H]``, the shape of ``x``, any float dtype.
        weight: ``[H]`` f64|f32|bf16|f16.
        eps: added to the mean square, at least 0.
        out: ``[..., H]``, the dtype of ``x``; may be ``x`` or ``gate``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: vLLM ``RMSNormGated`` with the norm before the gate.
    """
    check = Check("rms_norm_gated")
    check.tensor("x", x, "... H", FLOATS)
    check.tensor("gate", gate, "... H", FLOATS)
    check.same_shape("gate", gate, "x", x)
    check.tensor("weight", weight, "H", FLOATS)
    check.number("eps", eps, low=0)
    out = check.output(out, x.shape, x.dtype)
    RMS_NORM_GATED(out, x, gate, weight, eps)
    return out


@RMS_NORM_GATED.reference
def _rms_norm_gated(out: Array, x: Array, gate: Array, weight: Array, eps: float) -> None:
    accum = accum_dtype(x, gate, weight)
    normed, wide = np.empty(x.shape, accum), gate.astype(accum)
    _rms_norm(normed, x.astype(accum), weight, eps)
    round_into(out, normed * (wide / (1 + np.exp(-wide))))


def l2_norm(x: Array, eps: float, *, out: Array | None = None) -> Array:
    """Scale the last axis to length 1.

    ``out = x / sqrt(sum(x², axis=-1) + eps)``, rounded once at the end.

    Args:
        x: ``[..., D]`` f64|f32|bf16|f16.
        eps: added to the sum of squares, at least 0.
        out: ``[..., D]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: transformers ``l2norm`` of Qwen3-Next.
    """
    check = Check("l2_norm")
    check.tensor("x", x, "... D", FLOATS)
    check.number("eps", eps, low=0)
    out = check.output(out, x.shape, x.dtype)
    L2_NORM(out, x, eps)
    return out


@L2_NORM.reference
def _l2_norm(out: Array, x: Array, eps: float) -> None:
    wide = x.astype(accum_dtype(x))
    square = np.sum(np.square(wide), axis=-1, keepdims=True)
    round_into(out, wide / np.sqrt(square + wide.dtype.type(eps)))
