"""Sampler: logits to token ids, one row a request, or k + 1 where k drafts are verified.

The order is that of vLLM V1: allowed and banned ids, ``min_tokens`` and bad words, logit bias,
penalties; then the most likely token for greedy rows; for the others temperature, min-p, top-k,
top-p and a draw that depends on the request's seed and position alone.

Dims: n rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import on_host, place
from pyvt.messages import NOTHING_ALLOWED, TokenLogprobs
from pyvt.worker.input_batch import InputBatch, LogitsRow
from pyvt.worker.logits_rows import process
from pyvt.worker.logprobs import token_logprobs
from pyvt.worker.row_moves import copy_of, put_rows, take_rows

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Sampled:
    """The result of a step, by request id.

    Attributes:
        token_ids: the tokens of each request that got any: kept drafts and the one behind them.
        logprobs: of requests that asked, one entry for each token.
        errors: requests that got none, with the reason.
    """

    token_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def sample(
    logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch, *, is_processed: bool = False
) -> Sampled:
    """Return tokens for the requests of ``logits`` ``[n, V]``; a bad row fails alone.

    The rows of a request lie together, the one without drafts ahead first. A request that fails
    behind drafts that were right gets these, as without speculation, and fails in the next step.
    Log probabilities are of the raw logits, with ``is_processed`` of those that were sampled from.
    """
    num_bad = on_host(ops.count_nonfinite(logits))
    is_bad = num_bad != 0
    if is_bad.any() and isinstance(logits, np.ndarray):
        logits = np.where(is_bad[:, None], logits.dtype.type(0), logits)
    token_ids, sampled_from = _choose(process(logits, wanted, rows), wanted, rows)
    token_ids[is_bad] = ops.NO_TOKEN
    result = Sampled()
    for start, tokens in _verified(token_ids, wanted):
        request = wanted[start].request
        last = start + len(tokens) - 1
        if len(tokens) > 1 and tokens[-1] == ops.NO_TOKEN:
            tokens = tokens[:-1]  # drafts that were right; the next step comes to the row again
        if tokens[-1] == ops.NO_TOKEN:
            result.errors[request.request_id] = _error_of(wanted[last], int(num_bad[last]), logits)
            continue
        result.token_ids[request.request_id] = tokens
    _add_logprobs(result, sampled_from if is_processed else logits, token_ids, wanted)
    return result


def _verified(
    token_ids: Array, wanted: Sequence[LogitsRow]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Return the first row of each request and its tokens; drafts that are wrong end them."""
    starts = [i for i, row in enumerate(wanted) if not row.ahead]
    if len(starts) == len(wanted):
        yield from enumerate(zip(token_ids.tolist(), strict=True))
        return
    ends = [*starts[1:], len(wanted)]
    drafts = [wanted[end - 1].ahead for end in ends]
    kept, num_tokens = ops.rejection_sample(
        token_ids,
        np.array([i for ids in drafts for i in ids], np.int64),
        np.cumsum([0, *map(len, drafts)], dtype=np.int64),
    )
    for r, start in enumerate(starts):
        yield start, tuple(kept[r, : num_tokens[r]].tolist())


def _error_of(row: LogitsRow, num_bad: int, logits: Array) -> str:
    if num_bad:
        return (
            f"[sampler] logits: expected finite values, got {num_bad} of {logits.shape[1]} "
            "that are not; the weights or the file are damaged, check with pyvt inspect"
        )
    matcher = row.request.matcher
    if matcher is not None and matcher.error is not None:
        return matcher.error
    return NOTHING_ALLOWED


def _choose(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> tuple[Array, Array]:
    """Return the token of each row ``[n]``, on the host, and the logits that it was taken from."""
    is_random = np.array([not row.request.params.is_greedy for row in wanted])
    if not is_random.any():
        return on_host(ops.argmax(logits)), logits
    if is_random.all():
        filtered = _filter(logits, wanted, rows)
        return _draw(filtered, wanted, rows), filtered
    drawn = [row for row in wanted if not row.request.params.is_greedy]
    token_ids = np.empty(len(wanted), np.int64)
    greedy, random = np.flatnonzero(~is_random), np.flatnonzero(is_random)
    token_ids[greedy] = on_host(ops.argmax(take_rows(logits, greedy)))
    filtered = _filter(take_rows(logits, random), drawn, rows)
    token_ids[random] = _draw(filtered, drawn, rows)
    sampled_from = copy_of(logits)
    put_rows(sampled_from, random, filtered)
    return token_ids, sampled_from


def _filter(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> Array:
    row_ids = [row.request.row for row in wanted]
    logits = ops.apply_temperature(logits, place(rows.temperature[row_ids], beside=logits))
    min_p, top_k, top_p = rows.min_p[row_ids], rows.top_k[row_ids], rows.top_p[row_ids]
    if min_p.any():
        ops.apply_min_p(logits, place(min_p, beside=logits), out=logits)
    if (top_k > 0).any() or (top_p < 1).any():
        most, share = place(top_k, beside=logits), place(top_p, beside=logits)
        ops.apply_top_k_top_p(logits, most, share, out=logits)
    return logits


def _draw(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> Array:
    seeds = rows.seeds[[row.request.row for row in wanted]]
    positions = np.array([row.position(rows) for row in wanted])
    given = place(seeds, beside=logits), place(positions, beside=logits)
    token_ids: Array = on_host(ops.random_sample(logits, *given))
    return token_ids


def _add_logprobs(
    result: Sampled, logits: Array, token_ids: Array, wanted: Sequence[LogitsRow]
) -> None:
    asked = [
        (i, row.request)
        for i, row in enumerate(wanted)
        if row.request.params.logprobs is not None
        and len(row.ahead) < len(result.token_ids.get(row.request.request_id, ()))
    ]
    if not asked:
        return
    where = [i for i, _ in asked]
    entries = token_logprobs(
        take_rows(logits, np.array(where, np.int64)),
        token_ids[where],
        [r.params.logprobs or 0 for _, r in asked],
    )
    for (_, request), entry in zip(asked, entries, strict=True):
        before = result.logprobs.get(request.request_id, ())
        result.logprobs[request.request_id] = (*before, entry)
