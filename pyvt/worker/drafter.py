"""Drafts of a model's own head: its KV is kept up with each step, then it looks ahead.

The head reads, at each place, the decoder's hidden state and the token behind it. So after a step
it runs over the same tokens, each with its follower: the next of the prompt, or what was sampled.
Drafts that were wrong are left out; their KV is written anew by later steps. A second draft takes
the head's own output for the hidden state, and so on.

Dims: T tokens, R requests, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import fetch
from pyvt.dispatch.backend import Device
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.models.base import CausalLM
from pyvt.worker.device_graphs import batch_on
from pyvt.worker.input_batch import InputBatch, RequestRow
from pyvt.worker.prepare_inputs import StepInputs
from pyvt.worker.row_moves import take_ids

Array = np.ndarray[Any, Any]

_NO_IDS = np.empty(0, np.int64)


class HeadDrafter:
    """Drafts the most likely tokens of a model's head; its KV lies in the model's own blocks.

    Hidden states stay on the device where the model is; only drafts come from there.
    """

    def __init__(self, model: CausalLM, rows: InputBatch, device: Device | None = None) -> None:
        self.model = model
        self.rows = rows
        self.device = device

    def draft(
        self,
        step: StepInputs,
        hidden: Array,
        sampled: Mapping[str, tuple[int, ...]],
        verified: Mapping[str, tuple[int, ...]],
        limits: Mapping[str, int],
    ) -> dict[str, tuple[int, ...]]:
        """Return the drafts of requests; called once a step, after its tokens are in the rows.

        Args:
            step: what was run.
            hidden: ``[T, H]`` of its tokens.
            sampled: the new tokens of each request that got any.
            verified: the drafts that the step verified.
            limits: most drafts of each request that wants any.

        Returns:
            At least one for each of ``limits``, at most as many as asked for.
        """
        spans = [
            (i, request, self._num_valid(step, i, sampled, verified))
            for i, request in enumerate(step.requests)
        ]
        spans = [span for span in spans if span[2] > 0]
        if not spans:
            return {}
        batch, places = self._batch(step.batch, spans)
        token_rows = np.repeat([request.row for _, request, _ in spans], [n for *_, n in spans])
        behind = self.rows.token_ids[token_rows, batch.positions + 1]
        out = self._run(behind, self._take(hidden, places), batch)
        ends = (batch.cu_seqlens_q[1:] - 1).tolist()
        chosen = [
            (end, i)
            for end, (i, request, _) in zip(ends, spans, strict=True)
            if request.request_id in limits
        ]
        if not chosen:
            return {}
        requests = [step.requests[i] for _, i in chosen]
        behind_last = self._take(out, np.array([end for end, _ in chosen]))
        return self._look_ahead(step.batch, requests, behind_last, limits)

    def _take(self, hidden: Array, places: Array) -> Array:
        """Return rows of ``[T, H]``."""
        if self.device is None:
            return np.take(hidden, places, axis=0)
        return ops.embedding(self.device.upload(places), hidden)

    def _run(self, behind: Array, hidden: Array, batch: ForwardBatch) -> Array:
        """Run the head over tokens whose followers are ``behind``, on the host or the device."""
        if self.device is None:
            return self.model.draft(behind, hidden, batch)
        given = behind if isinstance(behind, np.ndarray) else _NO_IDS
        there, batch = batch_on(self.device, given, batch)
        return self.model.draft(there if given is behind else behind, hidden, batch)

    def _num_valid(
        self,
        step: StepInputs,
        index: int,
        sampled: Mapping[str, tuple[int, ...]],
        verified: Mapping[str, tuple[int, ...]],
    ) -> int:
        """Return how many of a request's tokens in the step stay, from its first."""
        start, end = step.batch.cu_seqlens_q[index : index + 2].tolist()
        request = step.requests[index]
        drafts = verified.get(request.request_id, ())
        tokens = sampled.get(request.request_id, ())
        num_valid = int(end - start) - len(drafts) + max(0, len(tokens) - 1)
        last = int(step.batch.positions[start]) + num_valid
        # A request that failed has no token behind its last one.
        return min(num_valid, num_valid + int(self.rows.num_tokens[request.row]) - 1 - last)

    def _batch(
        self, batch: ForwardBatch, spans: Sequence[tuple[int, RequestRow, int]]
    ) -> tuple[ForwardBatch, Array]:
        """Return the batch of the tokens that stay, and their places in the step."""
        starts = batch.cu_seqlens_q[[i for i, *_ in spans]].astype(np.int64)
        counts = np.array([count for *_, count in spans], np.int64)
        ends = np.cumsum(counts)
        places = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
        seq_lens = batch.positions[starts] + counts
        which = [i for i, *_ in spans]
        made = replace(
            batch,
            num_tokens=len(places),
            num_reqs=len(spans),
            max_seqlen_q=int(counts.max()),
            max_seq_len=int(seq_lens.max()),
            positions=batch.positions[places],
            slot_mapping=np.ascontiguousarray(batch.slot_mapping[:, places]),
            block_tables=batch.block_tables[:, which],
            seq_lens=seq_lens.astype(np.int32),
            cu_seqlens_q=np.concatenate([[0], ends]).astype(np.int32),
            logits_indices=np.zeros(0, np.int32),
        )
        return made, places

    def _look_ahead(
        self,
        batch: ForwardBatch,
        requests: list[RequestRow],
        hidden: Array,
        limits: Mapping[str, int],
    ) -> dict[str, tuple[int, ...]]:
        """Draft token by token, for as long as a request wants more and has a block for it."""
        found: list[tuple[list[RequestRow], Array]] = []
        while True:
            tokens = ops.argmax(self.model.compute_logits(hidden))
            found.append((requests, tokens))
            count = len(found)
            going = [
                i
                for i, request in enumerate(requests)
                if count < limits[request.request_id] and self._has_slot(request, count)
            ]
            if isinstance(tokens, np.ndarray):  # those of a device are not known yet
                going = [i for i in going if tokens[i] >= 0]
            if not going:
                break
            requests = [requests[i] for i in going]
            step = self._one_token_each(batch, requests, [count] * len(requests))
            where = np.array(going)
            hidden = self._run(take_ids(tokens, where), self._take(hidden, where), step)
        return _drafts(found)

    def _has_slot(self, request: RequestRow, num_ahead: int) -> bool:
        """Whether the KV of a draft has a place: only in a block that the request holds already."""
        position = int(self.rows.num_tokens[request.row]) - 2 + num_ahead
        index = position // self.rows.block_size
        tables = self.rows.block_tables
        return index < tables.shape[2] and bool((tables[0, request.row, index] > 0).all())

    def _one_token_each(
        self, batch: ForwardBatch, requests: Sequence[RequestRow], ahead: Sequence[int]
    ) -> ForwardBatch:
        rows, size = self.rows, self.rows.block_size
        row_ids = np.array([request.row for request in requests])
        known = np.array([rows.num_tokens[request.row] for request in requests], np.int64)
        positions = known - 2 + np.array(ahead)
        blocks = rows.block_tables[:, row_ids, positions // size].astype(np.int64)
        max_seq_len = int(positions.max()) + 1
        return replace(
            batch,
            num_tokens=len(requests),
            num_reqs=len(requests),
            max_seqlen_q=1,
            max_seq_len=max_seq_len,
            positions=positions,
            slot_mapping=blocks * size + positions % size,
            block_tables=rows.block_tables[:, row_ids, : -(-max_seq_len // size)],
            seq_lens=(positions + 1).astype(np.int32),
            cu_seqlens_q=np.arange(len(requests) + 1, dtype=np.int32),
            logits_indices=np.zeros(0, np.int32),
        )


def _drafts(found: Sequence[tuple[list[RequestRow], Array]]) -> dict[str, tuple[int, ...]]:
    """Return the drafts of each request, from those of each place ahead; waits once.

    A place whose logits are not finite has none, nor has one behind it.
    """
    drafts: dict[str, tuple[int, ...]] = {}
    is_over = set()
    for (requests, _), tokens in zip(
        found, fetch([tokens for _, tokens in found]).arrays(), strict=True
    ):
        for request, token in zip(requests, tokens.tolist(), strict=True):
            name = request.request_id
            if token < 0:
                is_over.add(name)
            known = drafts.setdefault(name, ())
            drafts[name] = known if name in is_over else (*known, token)
    return drafts
