"""Sampler: logits to token ids, one row a request.

The order is that of vLLM V1: allowed and banned ids, ``min_tokens``, logit bias, penalties; then
the most likely token for greedy rows; for the others temperature, min-p, top-k, top-p and a draw
that depends on the request's seed and position alone.

Dims: n rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.messages import TokenLogprobs
from pyvt.worker.input_batch import InputBatch, RequestRow

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Sampled:
    """The result of a step, by request id.

    Attributes:
        token_ids: the token of each request that got one.
        logprobs: of requests that asked, under the raw logits.
        errors: requests that got none, with the reason.
    """

    token_ids: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def sample(logits: Array, requests: Sequence[RequestRow], rows: InputBatch) -> Sampled:
    """Return a token for each row of ``logits`` ``[n, V]``; a bad row fails alone."""
    result = Sampled()
    bad = ops.count_nonfinite(logits)
    for request, count in zip(requests, bad.tolist(), strict=True):
        if count:
            result.errors[request.request_id] = (
                f"[sampler] logits: expected finite values, got {count} of {logits.shape[1]} "
                "that are not; the weights or the file are damaged, check with pyvt inspect"
            )
    if result.errors:
        good = np.flatnonzero(bad == 0)
        logits, requests = logits[good], [requests[i] for i in good.tolist()]
    if not requests:
        return result
    processed = _process(logits, requests, rows)
    token_ids = _choose(processed, requests, rows)
    for request, token_id in zip(requests, token_ids.tolist(), strict=True):
        if token_id < 0:
            result.errors[request.request_id] = (
                "[sampler] logits: expected at least one token to be allowed, got none; "
                "check allowed_token_ids, banned_token_ids and min_tokens"
            )
        else:
            result.token_ids[request.request_id] = token_id
    _add_logprobs(result, logits, token_ids, requests)
    return result


def _pairs(ids: Sequence[Array]) -> tuple[Array, Array]:
    """Return row and token of every id in a list with one array a row."""
    sizes = [len(row) for row in ids]
    return np.repeat(np.arange(len(ids)), sizes), np.concatenate(ids)


_NO_IDS = np.empty(0, np.int64)


def _process(logits: Array, requests: Sequence[RequestRow], rows: InputBatch) -> Array:
    """Apply what may change the most likely token; the raw logits stay as they are."""
    if not any(request.has_processors for request in requests):
        return logits
    logits = logits.copy()
    allowed = [_NO_IDS if r.allowed_ids is None else r.allowed_ids for r in requests]
    if any(len(row) for row in allowed):
        ops.apply_allowed_ids(logits, *_pairs(allowed), out=logits)
    banned = [np.concatenate((r.banned_ids, _kept_from_ending(r, rows))) for r in requests]
    if any(len(row) for row in banned):
        ops.apply_banned_ids(logits, *_pairs(banned), out=logits)
    if any(len(r.bias_ids) for r in requests):
        values = np.concatenate([r.bias_values for r in requests])
        ops.apply_logit_bias(logits, *_pairs([r.bias_ids for r in requests]), values, out=logits)
    _penalise(logits, requests, rows)
    return logits


def _kept_from_ending(request: RequestRow, rows: InputBatch) -> Array:
    num_output = rows.num_tokens[request.row] - request.num_prompt_tokens
    return request.ending_ids if num_output < request.params.min_tokens else _NO_IDS


def _penalise(logits: Array, requests: Sequence[RequestRow], rows: InputBatch) -> None:
    found = [(i, r) for i, r in enumerate(requests) if r.output_counts is not None]
    if not found:
        return
    where = [i for i, _ in found]
    row_ids = [r.row for _, r in found]
    logits[where] = ops.apply_penalties(
        logits[where],
        np.stack([r.prompt_mask for _, r in found if r.prompt_mask is not None]),
        np.stack([r.output_counts for _, r in found if r.output_counts is not None]),
        rows.repetition[row_ids],
        rows.presence[row_ids],
        rows.frequency[row_ids],
    )


def _choose(logits: Array, requests: Sequence[RequestRow], rows: InputBatch) -> Array:
    is_random = np.array([not request.params.is_greedy for request in requests])
    if not is_random.any():
        return ops.argmax(logits)
    if is_random.all():
        return _draw(logits, [r.row for r in requests], rows)
    token_ids = np.empty(len(requests), np.int64)
    token_ids[~is_random] = ops.argmax(logits[~is_random])
    random_rows = [r.row for r in requests if not r.params.is_greedy]
    token_ids[is_random] = _draw(logits[is_random], random_rows, rows)
    return token_ids


def _draw(logits: Array, row_ids: list[int], rows: InputBatch) -> Array:
    logits = ops.apply_temperature(logits, rows.temperature[row_ids])
    min_p, top_k, top_p = rows.min_p[row_ids], rows.top_k[row_ids], rows.top_p[row_ids]
    if min_p.any():
        ops.apply_min_p(logits, min_p, out=logits)
    if (top_k > 0).any() or (top_p < 1).any():
        ops.apply_top_k_top_p(logits, top_k, top_p, out=logits)
    return ops.random_sample(logits, rows.seeds[row_ids], rows.num_tokens[row_ids])


def _add_logprobs(
    result: Sampled, logits: Array, token_ids: Array, requests: Sequence[RequestRow]
) -> None:
    asked = [
        (i, r)
        for i, r in enumerate(requests)
        if r.params.logprobs is not None and r.request_id in result.token_ids
    ]
    if not asked:
        return
    where = [i for i, _ in asked]
    num_top = min(max(r.params.logprobs or 0 for _, r in asked), logits.shape[1])
    top_ids, top_values, values, ranks = ops.top_logprobs(logits[where], token_ids[where], num_top)
    for place, (i, request) in enumerate(asked):
        wanted = request.params.logprobs or 0
        result.logprobs[request.request_id] = TokenLogprobs(
            token_id=int(token_ids[i]),
            logprob=float(values[place]),
            rank=int(ranks[place]),
            top=tuple(
                zip(
                    top_ids[place, :wanted].tolist(),
                    top_values[place, :wanted].tolist(),
                    strict=True,
                )
            ),
        )
