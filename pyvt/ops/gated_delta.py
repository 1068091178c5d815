"""Gated DeltaNet: linear attention whose state of fixed size decays and is corrected by each token.

Dims: T tokens of all requests, R requests, Hk key heads, Hv value heads, Dk size of a key, Dv size
of a value, B slots of the state.

Value head ``h`` uses the key head ``h // (Hv / Hk)`` where heads are ``grouped``, as transformers
stores them, and ``h % Hk`` where they are ``tiled``, as GGUF files store them. The tokens of
request ``r`` are rows ``cu_seqlens_q[r]`` to ``cu_seqlens_q[r + 1]``. A state is Dk rows of Dv: a
kernel then sums over rows, with a value's elements side by side in its vectors and no sum across
them.
"""

from itertools import pairwise

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.norm import L2_NORM, RMS_NORM_GATED
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.ops.state_slots import check_slots
from pyvt.tensor.dtype import F32, F64, FLOATS

GDN_GATE = declare("gdn_gate", num_outputs=2)
GATED_DELTA_RULE = declare("gated_delta_rule", num_outputs=2)
GATED_DELTA_NET = declare(
    "gated_delta_net",
    num_outputs=2,
    composite=("l2_norm", "gdn_gate", "gated_delta_rule", "rms_norm_gated"),
)

HEAD_MAPS = ("grouped", "tiled")
# Added to the sum of squares of queries and keys; the models have no setting for it.
L2_EPS = 1e-6
_WIDE = (F32, F64)
# From here on softplus is its argument.
_LINEAR_FROM = 20.0


def gdn_gate(a: Array, b: Array, decay_rate: Array, dt_bias: Array) -> tuple[Array, Array]:
    """Decay and step size of each token and value head.

    ``g = decay_rate · softplus(a + dt_bias)``, at most 0, and ``beta = sigmoid(b)``.

    Args:
        a: ``[T, Hv]`` f64|f32|bf16|f16.
        b: ``[T, Hv]``, the dtype of ``a``.
        decay_rate: ``[Hv]`` f32|f64: ``−exp(A_log)``, as GGUF files store it.
        dt_bias: ``[Hv]`` f64|f32|bf16|f16.

    Returns:
        ``g`` and ``beta``, each ``[T, Hv]`` f32, f64 where an input is f64.

    Raises:
        ShapeError, DTypeError.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers ``Qwen3NextGatedDeltaNet``.
    """
    check = Check("gdn_gate")
    _check_gate(check, a, b, decay_rate, dt_bias)
    accum = accum_dtype(a, decay_rate, dt_bias)
    g = check.output(None, a.shape, accum)
    beta = check.output(None, a.shape, accum)
    GDN_GATE(g, beta, a, b, decay_rate, dt_bias)
    return g, beta


def _check_gate(check: Check, a: Array, b: Array, decay_rate: Array, dt_bias: Array) -> None:
    check.tensor("a", a, "T Hv", FLOATS)
    check.tensor("b", b, "T Hv", FLOATS)
    check.same_dtype("b", b, "a", a)
    check.tensor("decay_rate", decay_rate, "Hv", _WIDE)
    check.tensor("dt_bias", dt_bias, "Hv", FLOATS)


@GDN_GATE.reference
def _gdn_gate(g: Array, beta: Array, a: Array, b: Array, decay_rate: Array, dt_bias: Array) -> None:
    wide = a.astype(g.dtype) + dt_bias.astype(g.dtype)
    softplus = np.log1p(np.exp(np.minimum(wide, _LINEAR_FROM)))
    g[...] = decay_rate * np.where(wide > _LINEAR_FROM, wide, softplus)
    beta[...] = 1 / (1 + np.exp(-b.astype(beta.dtype)))


def gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
    scale: float,
    *,
    head_map: str = "grouped",
    out: Array | None = None,
) -> Array:
    """Read and correct a decaying state, token by token.

    For every token of a request in turn and every value head, with its key head's q and k:
    ``S ← exp(g) · S; S ← S + k ⊗ beta · (v − Sᵀk); out = Sᵀ(q · scale)``. Behind token ``t`` the
    slot ``state_slots[t]`` takes S.

    Args:
        q: ``[T, Hk, Dk]`` f64|f32|bf16|f16, normed as a rule; Hv is a multiple of Hk.
        k: ``[T, Hk, Dk]``, the dtype of ``q``.
        v: ``[T, Hv, Dv]``, the dtype of ``q``.
        g: ``[T, Hv]`` f32|f64, log of the decay, at most 0.
        beta: ``[T, Hv]``, the dtype of ``g``.
        state: ``[B, Hv, Dk, Dv]`` f32, f64 where another input is f64; overwritten at
            ``state_slots``; shares no memory with other arguments.
        cu_seqlens_q: ``[R + 1]`` i32, from 0 to T; a request may have no token.
        initial_slots: ``[R]`` i32, slot that a request goes on from; −1 starts from zeros. Several
            requests may start from one slot, if none of the others writes it.
        state_slots: ``[T]`` i32, slot that takes the state behind a token; −1 for none.
        scale: factor of q, as a rule ``1 / sqrt(Dk)``.
        head_map: which key head a value head uses: ``grouped`` or ``tiled``.
        out: ``[T, Hv, Dv]``, the dtype of ``q``; shares no memory with the inputs.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where an index array contradicts T or B.
        DTypeError.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers ``torch_recurrent_gated_delta_rule``.
    """
    check = Check("gated_delta_rule")
    _check_heads(check, q, k, v, head_map)
    check.tensor("g", g, "T Hv", _WIDE)
    check.tensor("beta", beta, "T Hv", _WIDE)
    check.same_dtype("beta", beta, "g", g)
    check.number("scale", scale)
    _check_state(check, state, accum_dtype(q, g), q=q, k=k, v=v, g=g, beta=beta)
    check_slots(check, cu_seqlens_q, initial_slots, state_slots, check.dims["B"])
    out = check.output(out, v.shape, q.dtype)
    check.disjoint("out", out, q=q, k=k, v=v, g=g, beta=beta, state=state)
    slots = (cu_seqlens_q, initial_slots, state_slots)
    GATED_DELTA_RULE(out, state, q, k, v, g, beta, *slots, scale, head_map)
    return out


def _check_heads(check: Check, q: Array, k: Array, v: Array, head_map: str) -> None:
    check.tensor("q", q, "T Hk Dk", FLOATS)
    check.tensor("k", k, "T Hk Dk", FLOATS)
    check.tensor("v", v, "T Hv Dv", FLOATS)
    check.same_dtype("k", k, "q", q)
    check.same_dtype("v", v, "q", q)
    if check.dims["Hk"] == 0 or check.dims["Hv"] % check.dims["Hk"]:
        raise check.fail("v", f"Hv a multiple of Hk={check.dims['Hk']}", check.dims["Hv"])
    if head_map not in HEAD_MAPS:
        raise check.fail("head_map", " or ".join(HEAD_MAPS), head_map)


def _check_state(
    check: Check, state: Array, dtype: "np.dtype[np.generic]", **inputs: Array
) -> None:
    check.tensor("state", state, "B Hv Dk Dv", _WIDE)
    check.output(state, state.shape, dtype, "state")
    check.disjoint("state", state, **inputs)


@GATED_DELTA_RULE.reference
def _gated_delta_rule(
    out: Array,
    state: Array,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
    scale: float,
    head_map: str,
) -> None:
    num_heads, accum = v.shape[1], state.dtype
    key_heads = key_head_of(num_heads, q.shape[1], head_map)
    q, k = (q.astype(accum) * accum.type(scale))[:, key_heads], k.astype(accum)[:, key_heads]
    v, decay = v.astype(accum), np.exp(g)
    currents = [
        state[slot].copy() if slot >= 0 else np.zeros(state.shape[1:], accum)
        for slot in initial_slots.tolist()
    ]
    for current, (begin, end) in zip(currents, pairwise(cu_seqlens_q.tolist()), strict=True):
        for t in range(begin, end):
            current *= decay[t, :, None, None]
            read = np.einsum("hkv,hk->hv", current, k[t])
            delta = beta[t, :, None] * (v[t] - read)
            current += k[t, :, :, None] * delta[:, None, :]
            round_into(out[t], np.einsum("hkv,hk->hv", current, q[t]))
            if state_slots[t] >= 0:
                state[state_slots[t]] = current


def key_head_of(num_value_heads: int, num_key_heads: int, head_map: str) -> Array:
    """Return the key head of every value head, ``[Hv]``."""
    heads = np.arange(num_value_heads)
    if head_map == "tiled":
        return heads % num_key_heads
    return heads // (num_value_heads // num_key_heads)


def gated_delta_net(
    q: Array,
    k: Array,
    v: Array,
    z: Array,
    a: Array,
    b: Array,
    decay_rate: Array,
    dt_bias: Array,
    weight: Array,
    eps: float,
    state: Array,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
    *,
    head_map: str = "grouped",
    out: Array | None = None,
) -> Array:
    """All of a Gated DeltaNet layer between its convolution and its output projection.

    ``out = rms_norm_gated(o, z, weight, eps)`` of
    ``o = gated_delta_rule(l2_norm(q), l2_norm(k), v, *gdn_gate(a, b, …), …)`` with the scale
    ``1 / sqrt(Dk)`` and 1e-6 as the eps of the norms of q and k; rounded once at the end.

    Args:
        q: ``[T, Hk, Dk]`` f64|f32|bf16|f16; Hv is a multiple of Hk.
        k: ``[T, Hk, Dk]``, the dtype of ``q``.
        v: ``[T, Hv, Dv]``, the dtype of ``q``.
        z: ``[T, Hv, Dv]``, the dtype of ``q``.
        a: ``[T, Hv]``, the dtype of ``q``.
        b: ``[T, Hv]``, the dtype of ``q``.
        decay_rate: ``[Hv]`` f32|f64: ``−exp(A_log)``, as GGUF files store it.
        dt_bias: ``[Hv]`` f64|f32|bf16|f16.
        weight: ``[Dv]`` f64|f32|bf16|f16, of the norm.
        eps: of the norm, at least 0.
        state, cu_seqlens_q, initial_slots, state_slots, head_map: as in ``gated_delta_rule``.
        out: ``[T, Hv, Dv]``, the dtype of ``q``; shares no memory with the inputs.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where an index array contradicts T or B.
        DTypeError.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers ``Qwen3NextGatedDeltaNet``.
    """
    check = Check("gated_delta_net")
    _check_heads(check, q, k, v, head_map)
    check.tensor("z", z, "T Hv Dv", FLOATS)
    check.same_dtype("z", z, "q", q)
    _check_gate(check, a, b, decay_rate, dt_bias)
    check.same_dtype("a", a, "q", q)
    check.tensor("weight", weight, "Dv", FLOATS)
    check.number("eps", eps, low=0)
    inputs = {"q": q, "k": k, "v": v, "z": z, "a": a, "b": b}
    _check_state(check, state, accum_dtype(q, decay_rate, dt_bias, weight), **inputs)
    check_slots(check, cu_seqlens_q, initial_slots, state_slots, check.dims["B"])
    out = check.output(out, v.shape, q.dtype)
    check.disjoint("out", out, state=state, **inputs)
    parameters = (decay_rate, dt_bias, weight)
    slots = (cu_seqlens_q, initial_slots, state_slots)
    GATED_DELTA_NET(out, state, *inputs.values(), *parameters, *slots, eps, head_map)
    return out


@GATED_DELTA_NET.reference
def _gated_delta_net(
    out: Array,
    state: Array,
    q: Array,
    k: Array,
    v: Array,
    z: Array,
    a: Array,
    b: Array,
    decay_rate: Array,
    dt_bias: Array,
    weight: Array,
    cu_seqlens_q: Array,
    initial_slots: Array,
    state_slots: Array,
    eps: float,
    head_map: str,
) -> None:
    accum, scale = state.dtype, q.shape[2] ** -0.5
    unit_q, unit_k = np.empty(q.shape, accum), np.empty(k.shape, accum)
    L2_NORM.reference_kernel(unit_q, q, L2_EPS)
    L2_NORM.reference_kernel(unit_k, k, L2_EPS)
    g, beta = np.empty(a.shape, accum), np.empty(a.shape, accum)
    _gdn_gate(g, beta, a, b, decay_rate, dt_bias)
    wide = np.empty(v.shape, accum)
    inputs, slots = (unit_q, unit_k, v, g, beta), (cu_seqlens_q, initial_slots, state_slots)
    _gated_delta_rule(wide, state, *inputs, *slots, scale, head_map)
    RMS_NORM_GATED.reference_kernel(out, wide, z, weight, eps)
