"""What a row of logits is for, and what changes it before a token is chosen.

A request that decodes has one row. One that verifies k drafted tokens has k + 1: row i stands
behind i drafts, so its penalties, bad words, ``min_tokens`` and grammar see these drafts as if they
had been generated.

Dims: n rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import place, place_together
from pyvt.worker.input_batch import InputBatch, LogitsRow
from pyvt.worker.row_moves import copy_of, put_rows, take_rows

Array = np.ndarray[Any, Any]
_NO_IDS = np.empty(0, np.int64)


def process(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> Array:
    """Apply what may change the most likely token; ``logits`` ``[n, V]`` stay as they are."""
    is_reduced = len(rows.unused_ids) and any(w.request.params.is_greedy for w in wanted)
    if not is_reduced and not any(w.request.has_processors for w in wanted):
        return logits
    logits = copy_of(logits)
    leave_out_unused(logits, rows)
    requests = [w.request for w in wanted]
    allowed = [_NO_IDS if r.allowed_ids is None else r.allowed_ids for r in requests]
    if any(len(row) for row in allowed):
        ops.apply_allowed_ids(logits, *_pairs(allowed, logits), out=logits)
    is_over = _apply_grammars(logits, wanted, rows)
    banned = [_banned(w, rows, i in is_over) for i, w in enumerate(wanted)]
    if any(len(row) for row in banned):
        ops.apply_banned_ids(logits, *_pairs(banned, logits), out=logits)
    if any(len(r.bias_ids) for r in requests):
        values = place(np.concatenate([r.bias_values for r in requests]), beside=logits)
        pairs = _pairs([r.bias_ids for r in requests], logits)
        ops.apply_logit_bias(logits, *pairs, values, out=logits)
    _penalise(logits, wanted, rows)
    return logits


def leave_out_unused(logits: Array, rows: InputBatch) -> None:
    """Take ids that stand for no token out of all rows of ``logits``, in place."""
    if not len(rows.unused_ids):
        return
    pairs = rows.unused_pairs
    if pairs is None or len(pairs[0]) != len(rows.unused_ids) * len(logits):
        pairs = rows.unused_pairs = _pairs([rows.unused_ids] * len(logits), logits)
    ops.apply_banned_ids(logits, *pairs, out=logits)


def _pairs(ids: Sequence[Array], logits: Array) -> tuple[Array, Array]:
    """Return row and token of every id in a list with one array a row, beside ``logits``."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    where, token_ids = place_together([rows, np.concatenate(ids)], beside=logits)
    return where, token_ids


def _apply_grammars(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> set[int]:
    """Mask what grammars forbid; return the rows in which they let nothing but the end through."""
    where: list[int] = []
    masks: list[Array] = []
    for i, w in enumerate(wanted):
        matcher = w.request.matcher
        if matcher is None or w.ahead:
            continue
        max_tokens = w.request.params.max_tokens
        assert max_tokens is not None, "the input processor resolves max_tokens"
        ends = range(i + 1, len(wanted))
        end = next((j for j in ends if wanted[j].request is not w.request), len(wanted))
        where += range(i, end)
        masks.append(matcher.masks(wanted[end - 1].ahead, max_tokens - w.num_output(rows)))
    if not where:
        return set()
    mask = np.concatenate(masks)
    allowed_here = place(mask, beside=logits)
    if len(where) == len(wanted):
        ops.apply_token_mask(logits, allowed_here, out=logits)
    else:
        rows_here = np.array(where, np.int64)
        masked = ops.apply_token_mask(take_rows(logits, rows_here), allowed_here)
        put_rows(logits, rows_here, masked)
    is_over = set()
    for i, allowed in zip(where, mask, strict=True):
        request = wanted[i].request
        if request.params.min_tokens and not np.delete(allowed, request.ending_ids).any():
            is_over.add(i)
    return is_over


def _banned(wanted: LogitsRow, rows: InputBatch, is_over: bool) -> Array:
    request = wanted.request
    parts = [request.banned_ids]
    if wanted.num_output(rows) < request.params.min_tokens and not is_over:
        parts.append(request.ending_ids)
    if request.bad_words:
        parts.append(_completing(wanted, rows))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _completing(wanted: LogitsRow, rows: InputBatch) -> Array:
    """Return the ids that would complete a bad word behind what was generated."""
    row, end = wanted.request.row, wanted.position(rows)
    longest = max(map(len, wanted.request.bad_words)) - 1
    start = max(wanted.request.num_prompt_tokens, end - longest)
    known = rows.token_ids[row, start : end - len(wanted.ahead)].tolist()
    tail = (*known, *wanted.ahead)[-longest:] if longest else ()
    found = [
        word[-1]
        for word in wanted.request.bad_words
        if len(word) == 1 or tail[-(len(word) - 1) :] == word[:-1]
    ]
    return np.array(found, np.int64)


def _penalise(logits: Array, wanted: Sequence[LogitsRow], rows: InputBatch) -> None:
    found = [(i, w) for i, w in enumerate(wanted) if w.request.prompt_ids is not None]
    if not found:
        return
    where = np.array([i for i, _ in found], np.int64)
    row_ids = [w.request.row for _, w in found]
    prompts = [w.request.prompt_ids for _, w in found if w.request.prompt_ids is not None]
    outputs = [_output_ids(w, rows) for _, w in found]
    sizes = [len(ids) for ids in (*prompts, *outputs)]
    num_prompt = sum(map(len, prompts))
    parameters = (
        np.repeat(np.tile(np.arange(len(found)), 2), sizes),
        np.concatenate([*prompts, *outputs]),
        np.arange(sum(sizes)) >= num_prompt,
        rows.repetition[row_ids],
        rows.presence[row_ids],
        rows.frequency[row_ids],
    )
    given = place_together(parameters, beside=logits)
    put_rows(logits, where, ops.apply_penalties(take_rows(logits, where), *given))


def _output_ids(wanted: LogitsRow, rows: InputBatch) -> Array:
    """Return the tokens generated before this row, drafts ahead of it included."""
    request = wanted.request
    made = rows.known_tokens(request)[request.num_prompt_tokens :]
    return np.concatenate([made, np.array(wanted.ahead, np.int64)]) if wanted.ahead else made
