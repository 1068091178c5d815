"""Log-probabilities of a vocabulary, and the best tokens of a row.

Dims: R rows, V vocabulary size, n best tokens asked for. What the logits are (the model's own, or
those that the sampler has changed) is the caller's choice; the ops do not change them.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array
from pyvt.ops.selection import largest
from pyvt.tensor.dtype import F32, F64, I64

LOG_SOFTMAX = declare("log_softmax")
TOP_LOGPROBS = declare("top_logprobs", num_outputs=4)

TopLogprobs = tuple[Array, Array, Array, Array]


def log_softmax(logits: Array, *, out: Array | None = None) -> Array:
    """Logarithm of the softmax over the last axis.

    ``out = (x − max(x)) − log(Σ exp(x − max(x)))``. A logit of −inf gives −inf; a row with a NaN,
    with +inf or of −inf alone gives NaN.

    Args:
        logits: ``[R, V]`` f64|f32.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: torch ``log_softmax``.
    """
    check = Check("log_softmax")
    check.tensor("logits", logits, "R V", (F32, F64))
    out = check.output(out, logits.shape, logits.dtype)
    LOG_SOFTMAX(out, logits)
    return out


@LOG_SOFTMAX.reference
def _log_softmax(out: Array, logits: Array) -> None:
    if logits.size:
        top, log_total = _normaliser(logits)
        out[...] = (logits - top) - log_total


def _normaliser(logits: Array) -> tuple[Array, Array]:
    """Return the maximum and the log of the sum of ``exp(x − max)`` of every row, ``[R, 1]``."""
    top = logits.max(axis=-1, keepdims=True)
    total = np.exp(logits - top).sum(axis=-1, keepdims=True)
    return top, np.log(total)


def top_logprobs(
    logits: Array, token_ids: Array, num_top: int, *, out: TopLogprobs | None = None
) -> TopLogprobs:
    """Log-probabilities of the best tokens of every row and of one chosen token.

    Values are those of ``log_softmax``, whatever ``num_top`` is. The order is: value falling, ties
    by the lowest id; the rank of a token is its place in that order, from 1.

    Args:
        logits: ``[R, V]`` f64|f32.
        token_ids: ``[R]`` i64, the chosen token of every row.
        num_top: n, at most V; 0 is none.
        out: the four results; none shares memory with the inputs.

    Returns:
        ``(top_ids [R, n] i64, top_values [R, n], token_values [R], token_ranks [R] i64)``; values
        in the dtype of ``logits``.

    Raises:
        ShapeError: also where a token or ``num_top`` is outside the vocabulary.
        DTypeError.

    Source: vLLM ``Sampler.gather_logprobs``.
    """
    check = Check("top_logprobs")
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("token_ids", token_ids, "R", (I64,))
    num_rows, vocab_size = logits.shape
    check.index("token_ids", token_ids, vocab_size)
    check.integer("num_top", num_top, low=0)
    if num_top > vocab_size:
        raise check.fail("num_top", f"a number from 0 to V={vocab_size}", num_top)
    top_ids, top_values, token_values, token_ranks = out or (None, None, None, None)
    out = (
        check.output(top_ids, (num_rows, num_top), np.int64, "out[0]"),
        check.output(top_values, (num_rows, num_top), logits.dtype, "out[1]"),
        check.output(token_values, (num_rows,), logits.dtype, "out[2]"),
        check.output(token_ranks, (num_rows,), np.int64, "out[3]"),
    )
    TOP_LOGPROBS(*out, logits, token_ids)
    return out


@TOP_LOGPROBS.reference
def _top_logprobs(
    top_ids: Array,
    top_values: Array,
    token_values: Array,
    token_ranks: Array,
    logits: Array,
    token_ids: Array,
) -> None:
    if not logits.size:
        return
    top, log_total = _normaliser(logits)
    num_top = top_ids.shape[1]
    for r, row in enumerate(logits):
        token_id = token_ids[r]
        num_before = np.count_nonzero(row[:token_id] == row[token_id])
        token_ranks[r] = 1 + np.count_nonzero(row > row[token_id]) + num_before
        token_values[r] = (row[token_id] - top[r, 0]) - log_total[r, 0]
        top_ids[r] = largest(row, num_top)
        top_values[r] = (row[top_ids[r]] - top[r]) - log_total[r]
