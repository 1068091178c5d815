"""From logits to token ids: temperature, min-p, top-k, top-p, the choice, and drafts verified.

Dims: R rows, V vocabulary size; for drafts R requests, M rows, K drafts at most. Parameters are
arrays ``[R]``, one value a row; a row whose parameter is off keeps its bits. Every ``out`` of
logits may be ``logits``.

The sampler applies these ops and those of ``penalties`` in this order: allowed ids, banned ids (so
minimum lengths) and token mask; logit bias; penalties; then the greedy rows are chosen with
``argmax``; temperature; min-p; top-k and top-p; ``random_sample``. Min-p, top-k and top-p keep the
token that ``argmax`` chooses. Log-probabilities come from ``logprobs``.

A kernel raises nothing for what a row holds: a row without a finite maximum (all −inf, a NaN, a
+inf) is left alone by the filters, and its token id is ``NO_TOKEN``. The caller fails that request
and no other.
"""

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.ops.numerics import Array, accum_dtype
from pyvt.ops.selection import largest
from pyvt.ops.splitmix import row_states, uniforms
from pyvt.tensor.dtype import F32, F64, FLOATS, I32, I64, U64

COUNT_NONFINITE = declare("count_nonfinite")
APPLY_TEMPERATURE = declare("apply_temperature")
APPLY_MIN_P = declare("apply_min_p")
APPLY_TOP_K_TOP_P = declare("apply_top_k_top_p")
ARGMAX = declare("argmax")
RANDOM_SAMPLE = declare("random_sample")
REJECTION_SAMPLE = declare("rejection_sample", num_outputs=2)

NO_TOKEN = -1
# A row with a lower temperature is greedy: dividing by it could overflow.
MIN_TEMPERATURE = 1e-5

# The noise of a token is between −3.6 and 36.8, so a token this far below the best never wins.
_NOISE_SPAN = 41.0
# Candidates of the first try of top-p; most rows need fewer.
_FIRST_CANDIDATES = 256


def count_nonfinite(logits: Array, *, out: Array | None = None) -> Array:
    """Count the values of every row that are NaN, +inf or −inf.

    Args:
        logits: ``[R, V]`` f64|f32|bf16|f16.
        out: ``[R]`` i64.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: torch ``isfinite``.
    """
    check = Check("count_nonfinite")
    check.tensor("logits", logits, "R V", FLOATS)
    out = check.output(out, logits.shape[:1], np.int64)
    COUNT_NONFINITE(out, logits)
    return out


@COUNT_NONFINITE.reference
def _count_nonfinite(out: Array, logits: Array) -> None:
    out[...] = logits.shape[1] - np.isfinite(logits).sum(axis=-1)


def apply_temperature(logits: Array, temperature: Array, *, out: Array | None = None) -> Array:
    """Divide every row by its temperature.

    Args:
        logits: ``[R, V]`` f64|f32.
        temperature: ``[R]`` f64|f32; 1 is off, and so is a value below ``MIN_TEMPERATURE``: such a
            row is greedy.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a temperature is negative or not finite.
        DTypeError.

    Source: transformers ``TemperatureLogitsWarper``; vLLM ``Sampler.apply_temperature``.
    """
    check = Check("apply_temperature")
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("temperature", temperature, "R", (F32, F64))
    check.every("temperature", temperature, lambda x: (x >= 0) & np.isfinite(x), "at least 0")
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_TEMPERATURE(out, logits, temperature)
    return out


@APPLY_TEMPERATURE.reference
def _apply_temperature(out: Array, logits: Array, temperature: Array) -> None:
    if out is not logits:
        out[...] = logits
    rows = np.flatnonzero((temperature >= MIN_TEMPERATURE) & (temperature != 1))
    out[rows] = logits[rows] / temperature[rows, None]


def apply_min_p(logits: Array, min_p: Array, *, out: Array | None = None) -> Array:
    """Remove the tokens whose probability is less than ``min_p`` times that of the best token.

    ``out = where(x < max(x) + log(min_p), −inf, x)``.

    Args:
        logits: ``[R, V]`` f64|f32.
        min_p: ``[R]`` f64|f32 from 0 to 1; 0 is off.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a value is not from 0 to 1.
        DTypeError.

    Source: Nguyen et al. 2024, arXiv:2407.01082; transformers ``MinPLogitsWarper``.
    """
    check = Check("apply_min_p")
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("min_p", min_p, "R", (F32, F64))
    check.every("min_p", min_p, _is_share, "from 0 to 1")
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_MIN_P(out, logits, min_p)
    return out


@APPLY_MIN_P.reference
def _apply_min_p(out: Array, logits: Array, min_p: Array) -> None:
    accum = accum_dtype(logits, min_p)
    if out is not logits:
        out[...] = logits
    rows = np.flatnonzero(min_p > 0)
    if logits.size and rows.size:
        x = logits[rows]
        threshold = x.max(axis=-1).astype(accum) + np.log(min_p[rows])
        out[rows] = np.where(x < threshold[:, None], -np.inf, x)


def apply_top_k_top_p(
    logits: Array, top_k: Array, top_p: Array, *, out: Array | None = None
) -> Array:
    """Keep the ``top_k`` best tokens of a row, then the fewest of those that hold ``top_p``.

    Top-k: every token that ties with the k-th is kept too, except that k = 1 keeps the one token
    that ``argmax`` chooses. Top-p: of the kept tokens, with probabilities over these alone, by
    value falling and ties by the lowest id, a token stays where those before it sum to less than
    ``top_p``; the first always stays. All others become −inf.

    Args:
        logits: ``[R, V]`` f64|f32.
        top_k: ``[R]`` i32; 0 or less, or V or more, is off.
        top_p: ``[R]`` f64|f32 from 0 to 1; 1 is off.
        out: ``[R, V]``, the dtype of ``logits``; may be ``logits``.

    Returns:
        ``out``.

    Raises:
        ShapeError: also where a ``top_p`` is not from 0 to 1.
        DTypeError.

    Source: Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2019, arXiv:1904.09751
    (top-p); vLLM ``apply_top_k_top_p``.
    """
    check = Check("apply_top_k_top_p")
    check.tensor("logits", logits, "R V", (F32, F64))
    check.tensor("top_k", top_k, "R", (I32,))
    check.tensor("top_p", top_p, "R", (F32, F64))
    check.every("top_p", top_p, _is_share, "from 0 to 1")
    out = check.output(out, logits.shape, logits.dtype)
    APPLY_TOP_K_TOP_P(out, logits, top_k, top_p)
    return out


@APPLY_TOP_K_TOP_P.reference
def _apply_top_k_top_p(out: Array, logits: Array, top_k: Array, top_p: Array) -> None:
    vocab_size = logits.shape[1]
    if out is not logits:
        out[...] = logits
    is_top_k = (top_k > 0) & (top_k < vocab_size)
    is_top_p = top_p < 1
    for r in np.flatnonzero(is_top_k | is_top_p):
        row = logits[r]
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            continue
        if is_top_k[r]:
            kept = np.array([best]) if top_k[r] == 1 else _top_k_ids(row, int(top_k[r]))
        else:
            kept = np.flatnonzero(row > -np.inf)
        if is_top_p[r]:
            kept = kept[_top_p_places(row[kept], float(top_p[r]))]
        values = row[kept]
        out[r] = -np.inf
        out[r, kept] = values


def _top_k_ids(row: Array, k: int) -> Array:
    threshold = np.partition(row, row.size - k)[row.size - k]
    return np.flatnonzero(row >= threshold)


def _top_p_places(values: Array, top_p: float) -> Array:
    """Return the places in ``values`` that top-p keeps; sums in f64."""
    weights = np.exp((values - values.max()).astype(np.float64))
    needed = top_p * weights.sum()
    num = min(_FIRST_CANDIDATES, values.size)
    while True:
        places = largest(values, num)
        cumulative = np.cumsum(weights[places])
        if cumulative[-1] >= needed or num == values.size:
            return places[: 1 + np.searchsorted(cumulative, needed, side="left")]
        num = min(8 * num, values.size)


def _is_share(values: Array) -> Array:
    return (values >= 0) & (values <= 1)


def argmax(logits: Array, *, out: Array | None = None) -> Array:
    """The best token of every row, the lowest id on ties; ``NO_TOKEN`` without a finite maximum.

    Args:
        logits: ``[R, V]`` f64|f32, V at least 1.
        out: ``[R]`` i64.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: numpy ``argmax``.
    """
    check = Check("argmax")
    _check_vocab(check, logits)
    out = check.output(out, logits.shape[:1], np.int64)
    ARGMAX(out, logits)
    return out


@ARGMAX.reference
def _argmax(out: Array, logits: Array) -> None:
    ids = logits.argmax(axis=-1)
    best = logits[np.arange(len(ids)), ids]
    out[...] = np.where(np.isfinite(best), ids, NO_TOKEN)


def random_sample(
    logits: Array, seeds: Array, positions: Array, *, out: Array | None = None
) -> Array:
    """Draw one token of every row from ``softmax(logits)``; ``NO_TOKEN`` without a finite maximum.

    ``out = argmax(x_i − log(−log(u_i)))`` in f64; ``u_i`` in (0, 1) is a function of the seed, the
    position and the token id alone (``splitmix``). So a draw does not depend on other rows and is
    repeatable; a token of −inf is never drawn.

    Args:
        logits: ``[R, V]`` f64|f32, V at least 1.
        seeds: ``[R]`` u64, the seed of the request.
        positions: ``[R]`` i64, the position in the sequence of the token that is drawn.
        out: ``[R]`` i64.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: Gumbel 1954, the Gumbel-max trick; vLLM ``gumbel_sample``.
    """
    check = Check("random_sample")
    _check_vocab(check, logits)
    check.tensor("seeds", seeds, "R", (U64,))
    check.tensor("positions", positions, "R", (I64,))
    out = check.output(out, logits.shape[:1], np.int64)
    RANDOM_SAMPLE(out, logits, seeds, positions)
    return out


@RANDOM_SAMPLE.reference
def _random_sample(out: Array, logits: Array, seeds: Array, positions: Array) -> None:
    states = row_states(seeds, positions)
    for r, row in enumerate(logits):
        best = row.max()
        if not np.isfinite(best):
            out[r] = NO_TOKEN
            continue
        ids = np.flatnonzero(row >= best - _NOISE_SPAN)
        waits = uniforms(states[r : r + 1], ids)
        np.log(waits, out=waits)
        np.negative(waits, out=waits)
        np.log(waits, out=waits)
        out[r] = ids[np.argmax(row[ids] - waits)]


def rejection_sample(
    token_ids: Array,
    draft_ids: Array,
    cu_num_drafts: Array,
    *,
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Keep the drafts that equal the tokens chosen in their place, and the token behind them.

    A request with k drafts has k + 1 rows of logits; row i stands behind i drafts. Where ``a`` is
    the number of first drafts with ``draft = token`` in their rows, its result is these drafts and
    the token of row ``a``: what it would have generated without drafts, since the tokens of the
    rows were chosen by ``argmax`` or ``random_sample``, and a draw depends on seed and position
    alone. A draft is kept with the probability that its row gives it.

    Args:
        token_ids: ``[M]`` i64, M = R + all drafts; the tokens of the rows, ``NO_TOKEN`` allowed.
        draft_ids: ``[M − R]`` i64.
        cu_num_drafts: ``[R + 1]`` i64, prefix sums of the drafts of each request.
        out: the two results; none shares memory with the inputs.

    Returns:
        ``(out [R, K + 1] i64, num_tokens [R] i64)``; ``NO_TOKEN`` behind the last token of a row.

    Raises:
        ShapeError: also where the sums do not start at 0, fall or end elsewhere than at M − R.
        DTypeError.

    Source: Leviathan et al. 2022, arXiv:2211.17192, for drafts that are certain; vLLM
    ``RejectionSampler``.
    """
    check = Check("rejection_sample")
    check.tensor("token_ids", token_ids, "M", (I64,))
    check.tensor("draft_ids", draft_ids, "D", (I64,))
    check.tensor("cu_num_drafts", cu_num_drafts, "Rp", (I64,))
    num_reqs, num_drafts = len(cu_num_drafts) - 1, np.diff(cu_num_drafts)
    is_sum = num_reqs >= 0 and cu_num_drafts[0] == 0 and cu_num_drafts[-1] == len(draft_ids)
    if not is_sum or (num_drafts < 0).any():
        raise check.fail("cu_num_drafts", f"sums from 0 to D={len(draft_ids)}", cu_num_drafts)
    if len(token_ids) != num_reqs + len(draft_ids):
        expected = f"M={num_reqs + len(draft_ids)}, a row for each draft and each request"
        raise check.fail("token_ids", expected, len(token_ids))
    kept, num_tokens = out or (None, None)
    width = 1 + int(num_drafts.max(initial=0))
    out = (
        check.output(kept, (num_reqs, width), np.int64, "out[0]"),
        check.output(num_tokens, (num_reqs,), np.int64, "out[1]"),
    )
    REJECTION_SAMPLE(*out, token_ids, draft_ids, cu_num_drafts)
    return out


@REJECTION_SAMPLE.reference
def _rejection_sample(
    out: Array, num_tokens: Array, token_ids: Array, draft_ids: Array, cu_num_drafts: Array
) -> None:
    out[...] = NO_TOKEN
    for r in range(len(num_tokens)):
        start, end = cu_num_drafts[r], cu_num_drafts[r + 1]
        tokens = token_ids[start + r : end + r + 1]
        is_wrong = tokens[:-1] != draft_ids[start:end]
        num = 1 + (int(is_wrong.argmax()) if is_wrong.any() else len(is_wrong))
        out[r, :num] = tokens[:num]
        num_tokens[r] = num


def _check_vocab(check: Check, logits: Array) -> None:
    check.tensor("logits", logits, "R V", (F32, F64))
    if logits.shape[1] == 0:
        raise check.fail("logits", "at least one token", logits.shape)
