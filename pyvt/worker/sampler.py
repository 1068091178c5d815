"""Sampler: logits to token ids, one row a request, or k + 1 where k drafts are verified.

Ids that stand for no token are never sampled. The order is that of vLLM V1: allowed and banned ids,
``min_tokens`` and bad words, logit bias, penalties; then the most likely token for greedy rows; for
the others temperature, min-p, top-k, top-p and a draw that depends on the request's seed and
position alone.

Dims: n rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import Fetched, fetch, place_together
from pyvt.messages import NOTHING_ALLOWED, TokenLogprobs
from pyvt.worker.input_batch import InputBatch, LogitsRow
from pyvt.worker.logits_rows import leave_out_unused, process
from pyvt.worker.logprobs import token_entries, top_entries
from pyvt.worker.row_moves import copy_of, put_ids, put_rows, take_ids, take_rows

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


@dataclass(slots=True)
class Sampling:
    """The tokens of a step, on their way from where its logits are.

    Attributes:
        wanted: what the rows of logits are for.
        num_logits: V.
        asked: the rows whose log probabilities are wanted.
        fetched: for each row the number of logits that are not finite, its token, and with
            ``asked`` what ``ops.top_logprobs`` gives for those rows.
    """

    wanted: Sequence[LogitsRow]
    num_logits: int
    asked: list[int]
    fetched: Fetched

    def finish(self) -> Sampled:
        """Wait for the tokens; a bad row fails alone."""
        num_bad, token_ids, *entries = self.fetched.arrays()
        token_ids[num_bad != 0] = ops.NO_TOKEN
        result = Sampled()
        for start, tokens in _verified(token_ids, self.wanted):
            request = self.wanted[start].request
            last = start + len(tokens) - 1
            if len(tokens) > 1 and tokens[-1] == ops.NO_TOKEN:
                tokens = tokens[:-1]  # drafts that were right; the next step comes to the row again
            if tokens[-1] == ops.NO_TOKEN:
                result.errors[request.request_id] = _error_of(
                    self.wanted[last], int(num_bad[last]), self.num_logits
                )
                continue
            result.token_ids[request.request_id] = tokens
        if entries:
            self._add_logprobs(result, token_ids, entries)
        return result

    def _add_logprobs(self, result: Sampled, token_ids: Array, entries: Sequence[Array]) -> None:
        """Add the entries of the rows that gave a token."""
        num_top = [self.wanted[i].request.params.logprobs or 0 for i in self.asked]
        made = token_entries(token_ids[self.asked], entries, num_top)
        for i, entry in zip(self.asked, made, strict=True):
            row = self.wanted[i]
            if len(row.ahead) < len(result.token_ids.get(row.request.request_id, ())):
                before = result.logprobs.get(row.request.request_id, ())
                result.logprobs[row.request.request_id] = (*before, entry)


def start_sampling(
    logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch, *, is_processed: bool = False
) -> Sampling:
    """Queue what gives tokens to the requests of ``logits`` ``[n, V]``; nothing waits.

    The rows of a request lie together, the one without drafts ahead first. A request that fails
    behind drafts that were right gets these, as without speculation, and fails in the next step.
    Log probabilities are of the raw logits, with ``is_processed`` of those that were sampled from.
    """
    num_bad = ops.count_nonfinite(logits)
    if isinstance(logits, np.ndarray) and (is_bad := num_bad != 0).any():
        logits = np.where(is_bad[:, None], logits.dtype.type(0), logits)
    token_ids, sampled_from = _choose(process(logits, wanted, rows), wanted, rows)
    asked = [i for i, row in enumerate(wanted) if row.request.params.logprobs is not None]
    if isinstance(token_ids, np.ndarray):
        asked = [i for i in asked if token_ids[i] >= 0]
    parts = [num_bad, token_ids]
    if asked:
        where = np.array(asked, np.int64)
        most = max(wanted[i].request.params.logprobs or 0 for i in asked)
        of_rows = take_rows(sampled_from if is_processed else logits, where)
        parts += top_entries(of_rows, take_ids(token_ids, where), most)
    return Sampling(wanted, logits.shape[1], asked, fetch(parts))


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


def _error_of(row: LogitsRow, num_bad: int, num_logits: int) -> str:
    if num_bad:
        return (
            f"[sampler] logits: expected finite values, got {num_bad} of {num_logits} "
            "that are not; the weights or the file are damaged, check with pyvt inspect"
        )
    matcher = row.request.matcher
    if matcher is not None and matcher.error is not None:
        return matcher.error
    return NOTHING_ALLOWED


def _choose(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> tuple[Array, Array]:
    """Return the token of each row ``[n]`` and the logits that it was taken from."""
    is_random = np.array([not row.request.params.is_greedy for row in wanted])
    if not is_random.any():
        return ops.argmax(logits), logits
    if is_random.all():
        filtered, token_ids = _filtered_and_drawn(logits, wanted, rows)
        return token_ids, filtered
    drawn = [row for row in wanted if not row.request.params.is_greedy]
    random = np.flatnonzero(is_random)
    token_ids = ops.argmax(logits)
    filtered, new_ids = _filtered_and_drawn(take_rows(logits, random), drawn, rows)
    put_ids(token_ids, random, new_ids)
    sampled_from = copy_of(logits)
    put_rows(sampled_from, random, filtered)
    return token_ids, sampled_from


def _filtered_and_drawn(
    logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch
) -> tuple[Array, Array]:
    """Return the logits that rows draw from, and a token for each of them."""
    row_ids = [row.request.row for row in wanted]
    min_p, top_k, top_p = rows.min_p[row_ids], rows.top_k[row_ids], rows.top_p[row_ids]
    positions = np.array([row.position(rows) for row in wanted])
    given = (rows.temperature[row_ids], min_p, top_k, top_p, rows.seeds[row_ids], positions)
    warmth, least, most, share, seeds, places = place_together(given, beside=logits)
    logits = ops.apply_temperature(logits, warmth)
    leave_out_unused(logits, rows)
    if min_p.any():
        ops.apply_min_p(logits, least, out=logits)
    if (top_k > 0).any() or (top_p < 1).any():
        ops.apply_top_k_top_p(logits, most, share, out=logits)
    return logits, ops.random_sample(logits, seeds, places)
