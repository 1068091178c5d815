"""From rows to the index arrays of a step.

Dims: T tokens of the step, R requests of the step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.layers.forward_batch import NO_SLOTS, ForwardBatch, LayerCache
from pyvt.mathutil import cdiv
from pyvt.messages import StateSlots
from pyvt.worker.input_batch import DecodeArrays, InputBatch, LogitsRow, RequestRow, RowGroup

Array = np.ndarray[Any, Any]
NO_DRAFTS: Mapping[str, tuple[int, ...]] = {}


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """What a step runs on.

    Attributes:
        input_ids: ``[T]`` i64.
        batch: the indices of the step.
        requests: the requests of the step, one for each of ``batch.seq_lens``.
        wanted: what the rows of logits are for, one for each of ``batch.logits_indices``.
    """

    input_ids: Array
    batch: ForwardBatch
    requests: tuple[RequestRow, ...]
    wanted: tuple[LogitsRow, ...]


def prepare_inputs(
    rows: InputBatch,
    num_scheduled_tokens: Mapping[str, int],
    kv_caches: tuple[LayerCache, ...],
    layer_groups: tuple[int, ...] = (),
    drafts: Mapping[str, tuple[int, ...]] = NO_DRAFTS,
    state_slots: Mapping[str, StateSlots] | None = None,
) -> StepInputs:
    """Return the inputs of a step; requests in the order of ``num_scheduled_tokens``.

    ``drafts`` are in the rows behind their tokens, and part of what is scheduled. ``state_slots``
    are those of every request of a model with linear attention.
    """
    group = rows.group(num_scheduled_tokens)
    requests, row_ids = group.requests, group.row_ids
    states = [state_slots[request.request_id] for request in requests] if state_slots else []
    initial_slots = np.array([slots.initial for slots in states], np.int32)
    if max(num_scheduled_tokens.values()) == 1:
        saved = np.array([slots.saves[0][1] for slots in states], np.int32)
        return _one_token_each(rows, group, kv_caches, layer_groups, (initial_slots, saved))
    num_new = np.fromiter(num_scheduled_tokens.values(), np.int64, len(requests))
    computed = np.array([rows.num_computed_tokens[row] for row in group.rows], np.int64)
    seq_lens = computed + num_new
    num_known = np.array([rows.num_tokens[row] for row in group.rows], np.int64)
    if drafts:
        num_drafts = [len(drafts.get(r.request_id, ())) for r in requests]
        num_known = num_known + np.array(num_drafts, np.int64)
    is_sampled = seq_lens == num_known
    assert np.all(seq_lens <= num_known), "a grant ends at the last known token or draft"

    wanted = list(_wanted(requests, is_sampled, drafts))
    cu_seqlens_q = np.zeros(len(requests) + 1, np.int64)
    np.cumsum(num_new, out=cu_seqlens_q[1:])
    num_tokens = int(cu_seqlens_q[-1])
    token_rows = np.repeat(row_ids, num_new)
    positions = np.arange(num_tokens) + np.repeat(computed - cu_seqlens_q[:-1], num_new)
    block_size = rows.block_size
    blocks = rows.block_tables[:, token_rows, positions // block_size].astype(np.int64)
    max_seq_len = int(seq_lens.max())
    batch = ForwardBatch(
        num_tokens=num_tokens,
        num_reqs=len(requests),
        max_seqlen_q=int(num_new.max()),
        max_seq_len=max_seq_len,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        block_tables=rows.block_tables[:, row_ids, : cdiv(max_seq_len, block_size)],
        seq_lens=seq_lens.astype(np.int32),
        cu_seqlens_q=cu_seqlens_q.astype(np.int32),
        logits_indices=_logits_indices(cu_seqlens_q, wanted, drafts),
        kv_caches=kv_caches,
        layer_groups=layer_groups,
        initial_slots=initial_slots,
        state_slots=_state_slots(states, cu_seqlens_q),
    )
    return StepInputs(
        input_ids=rows.token_ids[token_rows, positions],
        batch=batch,
        requests=requests,
        wanted=tuple(row for _, row in wanted),
    )


def _one_token_each(
    rows: InputBatch,
    group: RowGroup,
    kv_caches: tuple[LayerCache, ...],
    layer_groups: tuple[int, ...],
    slots: tuple[Array, Array],
) -> StepInputs:
    """Return the inputs of a decode step: the same in few array operations.

    A step streams all weights through the caches, so each of them starts cold.
    """
    num_reqs = len(group.requests)
    places = [rows.num_computed_tokens[row] for row in group.rows]
    known = [rows.num_tokens[row] for row in group.rows]
    arrays = group.last = _decode_arrays(rows, group, places)
    ends, wanted = group.starts[:num_reqs], group.wanted
    if arrays.next_places != known:
        lengths = arrays.next_places
        assert all(map(int.__le__, lengths, known)), "a grant ends at the last known token"
        ends = np.flatnonzero(np.equal(lengths, known)).astype(np.int32)
        wanted = tuple([group.wanted[i] for i in ends])
    batch = ForwardBatch(
        num_tokens=num_reqs,
        num_reqs=num_reqs,
        max_seqlen_q=1,
        max_seq_len=max(arrays.next_places),
        positions=arrays.positions,
        slot_mapping=arrays.slot_mapping,
        block_tables=arrays.block_tables,
        seq_lens=arrays.seq_lens,
        cu_seqlens_q=group.starts,
        logits_indices=ends,
        kv_caches=kv_caches,
        layer_groups=layer_groups,
        initial_slots=slots[0],
        state_slots=slots[1],
    )
    return StepInputs(
        input_ids=np.array(list(map(rows.token_ids.item, group.rows, places)), np.int64),
        batch=batch,
        requests=group.requests,
        wanted=wanted,
    )


def _state_slots(states: Sequence[StateSlots], cu_seqlens_q: Array) -> Array:
    """Return the slot that takes the state behind each token, −1 for none."""
    if not states:
        return NO_SLOTS
    slots = np.full(int(cu_seqlens_q[-1]), -1, np.int32)
    for start, state in zip(cu_seqlens_q[:-1].tolist(), states, strict=True):
        for count, slot in state.saves:
            slots[start + count - 1] = slot
    return slots


def _decode_arrays(rows: InputBatch, group: RowGroup, places: list[int]) -> DecodeArrays:
    """Return the arrays of a step with a token of each request, at ``places``.

    Where all requests go on in the blocks that they have, they are those of the last step and one.
    """
    last, block_size = group.last, rows.block_size
    is_next = last is not None and last.next_places == places
    if last is not None and is_next and last.num_appends == rows.num_appends:
        following = last.following or _following(last, block_size)
        if following is not None:
            return following
    positions = np.array(places, np.int64)
    entries, offsets = np.divmod(positions, block_size)
    blocks = rows.block_tables[:, group.row_ids, entries].astype(np.int64)
    num_blocks = cdiv(max(places) + 1, block_size)
    return DecodeArrays(
        next_places=[place + 1 for place in places],
        num_appends=rows.num_appends,
        positions=positions,
        seq_lens=(positions + 1).astype(np.int32),
        slot_mapping=blocks * block_size + offsets,
        block_tables=rows.block_tables[:, group.row_ids, :num_blocks],
    )


def _following(last: DecodeArrays, block_size: int) -> DecodeArrays | None:
    """Return the arrays behind ``last``; None where a request needs another block for them."""
    if not all([place % block_size for place in last.next_places]):
        return None
    return DecodeArrays(
        next_places=[place + 1 for place in last.next_places],
        num_appends=last.num_appends,
        positions=last.positions + 1,
        seq_lens=last.seq_lens + 1,
        slot_mapping=last.slot_mapping + 1,
        block_tables=last.block_tables,
    )


def prepare_ahead(rows: InputBatch) -> DecodeArrays | None:
    """Make what can be known of the step behind a decode step, before its tokens are known.

    None where that is nothing: in another step, or where a request will need another block.
    """
    last = rows.last_decode
    if last is None:
        return None
    last.following = _following(last, rows.block_size)
    return last.following


def _wanted(
    requests: Sequence[RequestRow], is_sampled: Array, drafts: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[int, LogitsRow]]:
    """Return the rows of logits of each request that is sampled, with the request's index."""
    for i, (request, ends) in enumerate(zip(requests, is_sampled.tolist(), strict=True)):
        if not ends:
            continue
        ahead = drafts.get(request.request_id, ())
        yield i, LogitsRow(request)
        for num in range(1, len(ahead) + 1):
            yield i, LogitsRow(request, ahead[:num])


def _logits_indices(
    cu_seqlens_q: Array, wanted: Sequence[tuple[int, LogitsRow]], drafts: Mapping[str, Any]
) -> Array:
    """Return the places of the rows among the tokens: the last of a request, and those before."""
    indices: Array = cu_seqlens_q[[i + 1 for i, _ in wanted]] - 1
    if drafts:
        num_behind = [
            len(drafts.get(row.request.request_id, ())) - len(row.ahead) for _, row in wanted
        ]
        indices -= np.array(num_behind, np.int64)
    return indices.astype(np.int32)
