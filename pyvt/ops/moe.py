"""Mixture of experts: the router's choice, the chosen experts' MLPs, the shared expert's part.

The weights of all experts of a layer are stacked ``[E, N, K]``: plain, in blocks, or as
``prepack_weight`` gave them. What a token gets does not depend on the other tokens of the call.

Dims: T tokens, H hidden size, E experts, K experts of a token, I intermediate size of an expert.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.errors import ConfigError, did_you_mean
from pyvt.ops.activation import SIGMOID, SILU
from pyvt.ops.linear import LINEAR
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.ops.packed_layouts import unpack_tiles
from pyvt.ops.quant_gguf import QUANT_LINEAR
from pyvt.tensor.dtype import BLOCK_FORMATS, F32, F64, FLOATS, I32, I64
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, columns_of, matrix_of

ROUTER_TOPK = declare("router_topk", num_outputs=2)
FUSED_EXPERTS = declare("fused_experts")
ADD_SHARED_EXPERT = declare("add_shared_expert")

Experts = Stored | PackedTensor

_ACT_MODES = ("none", "q8")
# Most pairs of a token and an expert whose outputs are held at once.
_MAX_PAIRS = 4096


def router_topk(
    logits: Array, top_k: int, *, renormalize: bool, out: tuple[Array, Array] | None = None
) -> tuple[Array, Array]:
    """Choose each token's experts: those of the K largest logits, by value falling.

    Equal logits go by the lowest id, NaN counts as −inf. The weight of an expert is its share of
    the softmax over all E logits, in f32 (f64 for f64); with ``renormalize`` the K weights are
    divided by their sum.

    Args:
        logits: ``[T, E]`` f64|f32|bf16|f16.
        top_k: K, 1 to E.
        renormalize: whether the weights of a token add up to 1.
        out: weights and ids to write into.

    Returns:
        Weights ``[T, K]`` f32, or f64 for f64 logits, and ids i32 ``[T, K]``.

    Raises:
        ShapeError, DTypeError.

    Source: Shazeer et al. 2017, arXiv:1701.06538; transformers ``Qwen3MoeTopKRouter``.
    """
    check = Check("router_topk")
    check.tensor("logits", logits, "T E", FLOATS)
    check.integer("top_k", top_k, low=1)
    num_tokens, num_experts = logits.shape
    if top_k > num_experts:
        raise check.fail("top_k", f"at most E={num_experts}", top_k)
    weights, ids = (None, None) if out is None else out
    shape = (num_tokens, int(top_k))
    weights = check.output(weights, shape, accum_dtype(logits), "weights")
    ids = check.output(ids, shape, np.dtype(np.int32), "ids")
    ROUTER_TOPK(weights, ids, logits, int(top_k), bool(renormalize))
    return weights, ids


@ROUTER_TOPK.reference
def _router_topk(weights: Array, ids: Array, logits: Array, top_k: int, renormalize: bool) -> None:
    wide = logits.astype(weights.dtype)
    ranked = np.where(np.isnan(wide), -np.inf, wide)
    ids[...] = np.argsort(-ranked, axis=-1, kind="stable")[:, :top_k]
    shares = np.exp(wide - wide.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shares, ids.astype(np.intp), axis=-1)
    weights[...] = chosen / chosen.sum(axis=-1, keepdims=True) if renormalize else chosen


def fused_experts(
    x: Array,
    expert_ids: Array,
    expert_weights: Array,
    gate: Experts,
    up: Experts,
    down: Experts,
    *,
    act: str = "none",
    out: Array | None = None,
) -> Array:
    """Add up the gated MLPs of each token's experts, weighted.

    ``out[t] = Σₖ expert_weights[t, k] · down(silu(gate(x[t])) · up(x[t]))`` with the matrices of
    expert ``expert_ids[t, k]``. All between is in f32 (f64 where an input is f64), the sum goes by
    k, and ``out`` is rounded once. With ``act="q8"`` the input of a product with blocks, ``x`` or
    the hidden row, is quantised first, as ``quant_linear`` does; not before plain weights, nor
    before a format without integer codes. A stack whose tensor has ``columns`` ``[E, K]`` gets the
    elements of its input in the order of each expert.

    Args:
        x: ``[T, H]`` f64|f32|bf16|f16.
        expert_ids: ``[T, K]`` i32|i64, each in ``[0, E)``; one that occurs twice counts twice.
        expert_weights: ``[T, K]`` f32|f64.
        gate: ``[E, I, H]``, plain, in blocks or packed; the dtypes of the three may differ.
        up: ``[E, I, H]``.
        down: ``[E, H, I]``.
        act: ``none`` or ``q8``.
        out: ``[T, H]``, the dtype of ``x``; shares no memory with an input.

    Returns:
        ``out``.

    Raises:
        ShapeError: also for an id outside ``[0, E)``.
        DTypeError.
        ConfigError: for an unknown ``act``.

    Source: transformers ``Qwen3MoeExperts``; vLLM ``fused_experts``.
    """
    check = Check("fused_experts")
    check.tensor("x", x, "T H", FLOATS)
    check.tensor("expert_ids", expert_ids, "T K", (I32, I64))
    check.tensor("expert_weights", expert_weights, "T K", (F32, F64))
    check.tensor("gate", gate, "E I H", (*FLOATS, *BLOCK_FORMATS))
    check.tensor("up", up, "E I H", (*FLOATS, *BLOCK_FORMATS))
    check.tensor("down", down, "E H I", (*FLOATS, *BLOCK_FORMATS))
    check.index("expert_ids", expert_ids, gate.shape[0])
    if act not in _ACT_MODES:
        valid = did_you_mean(act, _ACT_MODES)
        raise ConfigError(f"[fused_experts] act: {act!r} is unknown; {valid}", field="act")
    out = check.output(out, x.shape, x.dtype)
    check.disjoint("out", out, x=x, expert_ids=expert_ids, expert_weights=expert_weights)
    orders = columns_of(gate), columns_of(up), columns_of(down)
    for name, columns, dims in zip(
        ("gate", "up", "down"), orders, ("E H", "E H", "E I"), strict=True
    ):
        check.optional(f"{name}.columns", columns, dims, (I32,))
        if columns is not None:
            check.index(f"{name}.columns", columns, columns.shape[1])
    FUSED_EXPERTS(out, x, expert_ids, expert_weights, gate, up, down, *orders, act)
    return out


@FUSED_EXPERTS.reference
def _fused_experts(
    out: Array,
    x: Array,
    expert_ids: Array,
    expert_weights: Array,
    gate: Experts,
    up: Experts,
    down: Experts,
    gate_columns: Array | None,
    up_columns: Array | None,
    down_columns: Array | None,
    act: str,
) -> None:
    accum = accum_dtype(x, expert_weights)
    step = max(1, _MAX_PAIRS // max(1, expert_ids.shape[1]))
    for start in range(0, len(x), step):
        tokens = slice(start, start + step)
        wide, ids = x[tokens].astype(accum), expert_ids[tokens]
        parts = np.empty((*ids.shape, x.shape[1]), accum)
        for expert in np.unique(ids).tolist():
            chosen = ids == expert
            rows = wide[np.nonzero(chosen)[0]]
            hidden = _product(rows, gate, gate_columns, expert, act)
            SILU.reference_kernel(hidden, hidden)
            hidden *= _product(rows, up, up_columns, expert, act)
            parts[chosen] = _product(hidden, down, down_columns, expert, act)
        total = np.zeros(wide.shape, accum)
        for k in range(ids.shape[1]):
            total += expert_weights[tokens, k, None].astype(accum) * parts[:, k]
        round_into(out[tokens], total)


def _product(rows: Array, weight: Experts, columns: Array | None, expert: int, act: str) -> Array:
    """Return the products of rows of the accumulation dtype with the matrix of one expert."""
    if columns is not None:
        rows = rows[:, columns[expert]]
    if isinstance(weight, PackedTensor):
        packed = weight.matrix(expert)
        matrix = unpack_tiles(packed, 0, packed.num_tiles)
    else:
        matrix = matrix_of(weight, expert)
    product = np.empty((len(rows), matrix.shape[0]), rows.dtype)
    if isinstance(matrix, QuantTensor):
        # A format without codes, such as FP8, is multiplied as it is.
        act = act if matrix.dtype.has_codes else "none"
        QUANT_LINEAR.reference_kernel(product, rows, matrix, None, act)
    else:
        LINEAR.reference_kernel(product, rows, matrix, None)
    return product


def add_shared_expert(
    routed: Array, shared: Array, gate: Array, *, out: Array | None = None
) -> Array:
    """Add the shared expert's output, gated: ``out = routed + sigmoid(gate) · shared``.

    Args:
        routed: ``[T, H]`` f64|f32|bf16|f16, what the routed experts gave.
        shared: ``[T, H]``, the dtype of ``routed``.
        gate: ``[T, 1]``, the dtype of ``routed``; one logit a token.
        out: ``[T, H]``, the dtype of ``routed``; may be ``routed`` or ``shared``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: transformers ``Qwen3_5MoeSparseMoeBlock``.
    """
    check = Check("add_shared_expert")
    check.tensor("routed", routed, "T H", FLOATS)
    check.tensor("shared", shared, "T H", FLOATS)
    check.tensor("gate", gate, "T 1", FLOATS)
    check.same_dtype("shared", shared, "routed", routed)
    check.same_dtype("gate", gate, "routed", routed)
    out = check.output(out, routed.shape, routed.dtype)
    check.disjoint("out", out, gate=gate)
    ADD_SHARED_EXPERT(out, routed, shared, gate)
    return out


@ADD_SHARED_EXPERT.reference
def _add_shared_expert(out: Array, routed: Array, shared: Array, gate: Array) -> None:
    accum = accum_dtype(routed)
    share = np.empty(gate.shape, accum)
    SIGMOID.reference_kernel(share, gate.astype(accum))
    round_into(out, routed.astype(accum) + share * shared.astype(accum))
