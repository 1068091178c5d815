"""Activations, and the gated products of MLPs.

Dims: I intermediate size. ``...`` stands for any leading dims.
"""

import numpy as np

from pyvt.dispatch import Check, Op, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import FLOATS

RELU = declare("relu")
SIGMOID = declare("sigmoid")
SILU = declare("silu")
GELU = declare("gelu")
SILU_AND_MUL = declare("silu_and_mul", composite=("silu", "mul"))
GELU_AND_MUL = declare("gelu_and_mul", composite=("gelu", "mul"))
SIGMOID_GATE = declare("sigmoid_gate", composite=("sigmoid", "mul"))


def relu(x: Array, *, out: Array | None = None) -> Array:
    """Rectifier: ``out = max(x, 0)``; NaN stays NaN.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    return _map(RELU, x, out)


def sigmoid(x: Array, *, out: Array | None = None) -> Array:
    """Logistic function: ``out = 1 / (1 + exp(-x))``.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
    """
    return _map(SIGMOID, x, out)


def silu(x: Array, *, out: Array | None = None) -> Array:
    """Sigmoid-weighted linear unit: ``out = x * sigmoid(x)``; NaN at minus infinity.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Elfwing et al. 2017, arXiv:1702.03118.
    """
    return _map(SILU, x, out)


def gelu(x: Array, *, out: Array | None = None) -> Array:
    """Gaussian error linear unit in its tanh form; NaN at minus infinity.

    ``out = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))``.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        out: ``[...]``, the dtype of ``x``; may be ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
    """
    return _map(GELU, x, out)


def silu_and_mul(x: Array, *, out: Array | None = None) -> Array:
    """SwiGLU product of a fused gate and up projection.

    ``out = silu(x[..., :I]) * x[..., I:]``, rounded once at the end.

    Args:
        x: ``[..., 2I]`` f64|f32|bf16|f16, the gate in the first half.
        out: ``[..., I]``, the dtype of ``x``; may be either half of ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Shazeer 2020, arXiv:2002.05202; vLLM ``SiluAndMul.forward_native``.
    """
    return _gated(SILU_AND_MUL, x, out)


def gelu_and_mul(x: Array, *, out: Array | None = None) -> Array:
    """GeGLU product of a fused gate and up projection, with the tanh form of GELU.

    ``out = gelu(x[..., :I]) * x[..., I:]``, rounded once at the end.

    Args:
        x: ``[..., 2I]`` f64|f32|bf16|f16, the gate in the first half.
        out: ``[..., I]``, the dtype of ``x``; may be either half of ``x``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Shazeer 2020, arXiv:2002.05202; vLLM ``GeluAndMul.forward_native``.
    """
    return _gated(GELU_AND_MUL, x, out)


def sigmoid_gate(x: Array, gate: Array, *, out: Array | None = None) -> Array:
    """Product of a tensor and the logistic function of its gate.

    ``out = x * sigmoid(gate)``, rounded once at the end. Where a projection holds ``[q | gate]``
    for each head, the gate is the view ``[..., D:]`` of it.

    Args:
        x: ``[...]`` f64|f32|bf16|f16.
        gate: ``[...]``, the shape and dtype of ``x``.
        out: ``[...]``, the dtype of ``x``; may be ``x`` or ``gate``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Qiu et al. 2025, arXiv:2505.06708; transformers ``Qwen3NextAttention``.
    """
    check = Check("sigmoid_gate")
    check.tensor("x", x, "...", FLOATS)
    check.tensor("gate", gate, "...", FLOATS)
    check.same_dtype("gate", gate, "x", x)
    check.same_shape("gate", gate, "x", x)
    out = check.output(out, x.shape, x.dtype)
    SIGMOID_GATE(out, x, gate)
    return out


def _map(op: Op, x: Array, out: Array | None) -> Array:
    """Check and dispatch an op of one tensor that keeps its shape."""
    check = Check(op.name)
    check.tensor("x", x, "...", FLOATS)
    out = check.output(out, x.shape, x.dtype)
    op(out, x)
    return out


def _gated(op: Op, x: Array, out: Array | None) -> Array:
    """Check and dispatch an op that halves the last dim."""
    check = Check(op.name)
    check.tensor("x", x, "... _", FLOATS)
    if x.shape[-1] % 2:
        raise check.fail("x", "an even last dim, gate and up", x.shape)
    out = check.output(out, (*x.shape[:-1], x.shape[-1] // 2), x.dtype)
    op(out, x)
    return out


def _silu_of(wide: Array) -> Array:
    result: Array = wide / (1 + np.exp(-wide))
    return result


def _gelu_of(wide: Array) -> Array:
    inner = wide.dtype.type(np.sqrt(2 / np.pi)) * (wide + wide.dtype.type(0.044715) * wide**3)
    result: Array = wide / 2 * (1 + np.tanh(inner))
    return result


@RELU.reference
def _relu(out: Array, x: Array) -> None:
    round_into(out, np.maximum(x.astype(accum_dtype(x)), 0))


@SIGMOID.reference
def _sigmoid(out: Array, x: Array) -> None:
    round_into(out, 1 / (1 + np.exp(-x.astype(accum_dtype(x)))))


@SILU.reference
def _silu(out: Array, x: Array) -> None:
    round_into(out, _silu_of(x.astype(accum_dtype(x))))


@GELU.reference
def _gelu(out: Array, x: Array) -> None:
    round_into(out, _gelu_of(x.astype(accum_dtype(x))))


@SILU_AND_MUL.reference
def _silu_and_mul(out: Array, x: Array) -> None:
    wide, size = x.astype(accum_dtype(x)), out.shape[-1]
    round_into(out, _silu_of(wide[..., :size]) * wide[..., size:])


@GELU_AND_MUL.reference
def _gelu_and_mul(out: Array, x: Array) -> None:
    wide, size = x.astype(accum_dtype(x)), out.shape[-1]
    round_into(out, _gelu_of(wide[..., :size]) * wide[..., size:])


@SIGMOID_GATE.reference
def _sigmoid_gate(out: Array, x: Array, gate: Array) -> None:
    accum = accum_dtype(x)
    round_into(out, x.astype(accum) / (1 + np.exp(-gate.astype(accum))))
