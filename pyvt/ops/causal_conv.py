"""The short convolution before linear attention.

Dims: T tokens of all requests, R requests, C channels, Kc taps, P = Kc − 1 inputs that a state
holds, B slots of the state.

The tokens of request ``r`` are rows ``cu_seqlens_q[r]`` to ``cu_seqlens_q[r + 1]``. A state holds
the last P inputs, before the convolution and oldest first, as rows of channels: what lies before a
request's first token then looks like what lies before any other, and kernels read whole vectors of
channels from both.
"""

from itertools import pairwise

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.ops.state_slots import check_slots
from pyvt.tensor.dtype import FLOATS

CAUSAL_CONV1D = declare("causal_conv1d", num_outputs=2)


def causal_conv1d(
    x: Array,
    weight: Array,
    conv_state: Array,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
    *,
    bias: Array | None = None,
    out: Array | None = None,
) -> Array:
    """Causal convolution of each channel with taps of its own, then SiLU.

    ``out[t] = silu(bias + Σ_j weight[j] · x[t − P + j])``, where the inputs before a request's
    first token are those of its state, rounded once at the end. Behind token ``t`` the slot
    ``state_slots[t]`` takes the P inputs that end with it.

    Args:
        x: ``[T, C]`` f64|f32|bf16|f16.
        weight: ``[Kc, C]`` f64|f32|bf16|f16, channels side by side as in ``x``: a checkpoint's
            ``[C, 1, Kc]`` transposed. Row P meets the token itself.
        conv_state: ``[B, P, C]``, the dtype of ``x``; overwritten at ``state_slots``; shares no
            memory with other arguments.
        cu_seqlens_q: ``[R + 1]`` i32, from 0 to T; a request may have no token.
        initial_slots: ``[R]`` i32, slot that a request goes on from; −1 starts from zeros. Several
            requests may start from one slot, if none of the others writes it.
        state_slots: ``[T]`` i32, slot that takes the state behind a token; −1 for none.
        bias: ``[C]`` f64|f32|bf16|f16; None is zero.
        out: ``[T, C]``, the dtype of ``x``; shares no memory with the inputs.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where an index array contradicts T or B.
        DTypeError.

    Source: Gu & Dao 2023, arXiv:2312.00752; vLLM ``causal_conv1d_fn``.
    """
    check = Check("causal_conv1d")
    check.tensor("x", x, "T C", FLOATS)
    check.tensor("weight", weight, "Kc C", FLOATS)
    check.tensor("conv_state", conv_state, "B P C", FLOATS)
    check.same_dtype("conv_state", conv_state, "x", x)
    check.optional("bias", bias, "C", FLOATS)
    if check.dims["Kc"] < 2 or check.dims["P"] != check.dims["Kc"] - 1:
        expected = f"at least 2 taps, one more than the P={check.dims['P']} inputs of conv_state"
        raise check.fail("weight", expected, check.dims["Kc"])
    check.writeable("conv_state", conv_state)
    check_slots(check, cu_seqlens_q, initial_slots, state_slots, check.dims["B"])
    check.disjoint("conv_state", conv_state, x=x, weight=weight, bias=bias)
    out = check.output(out, x.shape, x.dtype)
    check.disjoint("out", out, x=x, weight=weight, bias=bias, conv_state=conv_state)
    CAUSAL_CONV1D(out, conv_state, x, weight, bias, cu_seqlens_q, initial_slots, state_slots)
    return out


@CAUSAL_CONV1D.reference
def _causal_conv1d(
    out: Array,
    conv_state: Array,
    x: Array,
    weight: Array,
    bias: Array | None,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
) -> None:
    others = () if bias is None else (bias,)
    accum = accum_dtype(x, weight, *others)
    num_before, taps = conv_state.shape[1], weight.astype(accum)
    befores = [
        conv_state[slot].copy() if slot >= 0 else np.zeros(conv_state.shape[1:], x.dtype)
        for slot in initial_slots.tolist()
    ]
    for before, (begin, end) in zip(befores, pairwise(cu_seqlens_q.tolist()), strict=True):
        inputs = np.concatenate([before, x[begin:end]])
        wide = inputs.astype(accum)
        total = np.zeros((end - begin, x.shape[1]), accum)
        if bias is not None:
            total += bias.astype(accum)
        for j, tap in enumerate(taps):
            total += tap * wide[j : j + end - begin]
        round_into(out[begin:end], total / (1 + np.exp(-total)))
        for t, slot in enumerate(state_slots[begin:end].tolist()):
            if slot >= 0:
                conv_state[slot] = inputs[t + 1 : t + 1 + num_before]
