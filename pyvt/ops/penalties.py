"""What changes single tokens of the logits before the temperature: bias, bans, masks, penalties.

Dims: R rows, V vocabulary size, M pairs of a row and a token. A row that an op has nothing to do
for keeps its bits. Every ``out`` may be ``logits``. Minimum lengths are a ban of the end tokens; a
grammar is a token mask.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype
from pyvt.tensor.dtype import BOOL, F32, F64, I64

APPLY_LOGIT_BIAS = declare("apply_logit_bias")
APPLY_BANNED_IDS = declare("apply_banned_ids")
APPLY_ALLOWED_IDS = declare("apply_allowed_ids")
APPLY_TOKEN_MASK = declare("apply_token_mask")
APPLY_PENALTIES = declare("apply_penalties")


def apply_logit_bias(
    logits: Array, row_ids: Array, token_ids: Array, bias: Array, *, out: Array | None = None
) -> Array:
    """Add a bias to single logits: ``out[row_ids[m], token_ids[m]] += bias[m]``.

    Args:
        logits: ``[R, V]`` f64|f32.
        row_ids: ``[M]`` i64.
        token_ids: ``[M]`` i64. A pair of row and token occurs once.
        bias: ``[M]`` f64|f32.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a row or a token is outside the logits.
        DTypeError.

    Source: vLLM ``LogitBiasLogitsProcessor``.
    """
    check = Check("apply_logit_bias")
    _check_pairs(check, logits, row_ids, token_ids)
    check.tensor("bias", bias, "M", (F32, F64))
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_LOGIT_BIAS(out, logits, row_ids, token_ids, bias)
    return out


@APPLY_LOGIT_BIAS.reference
def _apply_logit_bias(
    out: Array, logits: Array, row_ids: Array, token_ids: Array, bias: Array
) -> None:
    if out is not logits:
        out[...] = logits
    out[row_ids, token_ids] = logits[row_ids, token_ids] + bias


def apply_banned_ids(
    logits: Array, row_ids: Array, token_ids: Array, *, out: Array | None = None
) -> Array:
    """Set single logits to −inf: ``out[row_ids[m], token_ids[m]] = −inf``.

    Args:
        logits: ``[R, V]`` f64|f32.
        row_ids: ``[M]`` i64.
        token_ids: ``[M]`` i64; a pair may occur twice.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a row or a token is outside the logits.
        DTypeError.

    Source: transformers ``SuppressTokensLogitsProcessor``; vLLM ``MinTokensLogitsProcessor``.
    """
    check = Check("apply_banned_ids")
    _check_pairs(check, logits, row_ids, token_ids)
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_BANNED_IDS(out, logits, row_ids, token_ids)
    return out


@APPLY_BANNED_IDS.reference
def _apply_banned_ids(out: Array, logits: Array, row_ids: Array, token_ids: Array) -> None:
    if out is not logits:
        out[...] = logits
    out[row_ids, token_ids] = -np.inf


def apply_allowed_ids(
    logits: Array, row_ids: Array, token_ids: Array, *, out: Array | None = None
) -> Array:
    """Set every logit of the named rows to −inf, except those of the named tokens.

    A row that ``row_ids`` does not name keeps its bits.

    Args:
        logits: ``[R, V]`` f64|f32.
        row_ids: ``[M]`` i64, in any order.
        token_ids: ``[M]`` i64; token ``token_ids[m]`` is allowed in row ``row_ids[m]``.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a row or a token is outside the logits.
        DTypeError.

    Source: vLLM ``SamplingParams.allowed_token_ids``.
    """
    check = Check("apply_allowed_ids")
    _check_pairs(check, logits, row_ids, token_ids)
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_ALLOWED_IDS(out, logits, row_ids, token_ids)
    return out


@APPLY_ALLOWED_IDS.reference
def _apply_allowed_ids(out: Array, logits: Array, row_ids: Array, token_ids: Array) -> None:
    kept = logits[row_ids, token_ids]
    if out is not logits:
        out[...] = logits
    out[row_ids] = -np.inf
    out[row_ids, token_ids] = kept


def apply_token_mask(logits: Array, mask: Array, *, out: Array | None = None) -> Array:
    """Set the logits of masked tokens to −inf: ``out = where(mask, logits, −inf)``.

    Args:
        logits: ``[R, V]`` f64|f32.
        mask: ``[R, V]`` bool; True allows a token.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: transformers ``PrefixConstrainedLogitsProcessor``; torch ``masked_fill``.
    """
    check = Check("apply_token_mask")
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("mask", mask, "R V", (BOOL,))
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_TOKEN_MASK(out, logits, mask)
    return out


@APPLY_TOKEN_MASK.reference
def _apply_token_mask(out: Array, logits: Array, mask: Array) -> None:
    if out is not logits:
        out[...] = logits
    np.copyto(out, -np.inf, where=~mask)


def apply_penalties(
    logits: Array,
    row_ids: Array,
    token_ids: Array,
    is_output: Array,
    repetition: Array,
    presence: Array,
    frequency: Array,
    *,
    out: Array | None = None,
) -> Array:
    """Penalise tokens that have occurred: repetition first, then frequency and presence.

    A token in the prompt or the output: ``x = x / repetition`` where ``x > 0``, else
    ``x · repetition``. Then a token that occurs ``c > 0`` times in the output:
    ``x = x − frequency · c − presence``.

    Args:
        logits: ``[R, V]`` f64|f32.
        row_ids: ``[M]`` i64.
        token_ids: ``[M]`` i64. A token of a row's output is named as often as it occurs there, one
            of its prompt at least once.
        is_output: ``[M]`` bool, False for a token of the prompt.
        repetition: ``[R]`` f64|f32, more than 0; 1 is off.
        presence: ``[R]`` f64|f32; 0 is off.
        frequency: ``[R]`` f64|f32; 0 is off.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a row or a token is outside the logits, a penalty is not finite, or
            ``repetition`` is not more than 0.
        DTypeError.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1 (repetition); OpenAI API reference,
    "frequency and presence penalties"; the order is that of vLLM ``apply_penalties``.
    """
    check = Check("apply_penalties")
    _check_pairs(check, logits, row_ids, token_ids)
    check.tensor("is_output", is_output, "M", (BOOL,))
    check.tensor("repetition", repetition, "R", (F32, F64))
    check.every("repetition", repetition, lambda x: (x > 0) & np.isfinite(x), "more than 0")
    for name, values in (("presence", presence), ("frequency", frequency)):
        check.tensor(name, values, "R", (F32, F64))
        check.every(name, values, np.isfinite, "finite")
    out = check.output(out, logits.shape, logits.dtype)
    pairs, penalties = (row_ids, token_ids, is_output), (repetition, presence, frequency)
    APPLY_PENALTIES(out, logits, *pairs, *penalties)
    return out


@APPLY_PENALTIES.reference
def _apply_penalties(
    out: Array,
    logits: Array,
    row_ids: Array,
    token_ids: Array,
    is_output: Array,
    repetition: Array,
    presence: Array,
    frequency: Array,
) -> None:
    accum = accum_dtype(logits, repetition, presence, frequency)
    if out is not logits:
        out[...] = logits
    is_on = (repetition != 1) | (presence != 0) | (frequency != 0)
    for r in np.flatnonzero(is_on):
        row = logits[r].astype(accum)
        is_here = row_ids == r
        if repetition[r] != 1:
            seen = np.unique(token_ids[is_here])
            x = row[seen]
            row[seen] = np.where(x > 0, x / repetition[r], x * repetition[r])
        made, counts = np.unique(token_ids[is_here & is_output], return_counts=True)
        row[made] -= frequency[r] * counts.astype(accum) + presence[r]
        out[r] = row


def _check_pairs(check: Check, logits: Array, row_ids: Array, token_ids: Array) -> None:
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("row_ids", row_ids, "M", (I64,))
    check.tensor("token_ids", token_ids, "M", (I64,))
    check.index("row_ids", row_ids, check.dims["R"])
    check.index("token_ids", token_ids, check.dims["V"])
