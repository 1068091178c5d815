"""From rows to the index arrays of a step.

Dims: T tokens of the step, R requests of the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.layers.forward_batch import ForwardBatch, LayerCache
from pyvt.mathutil import cdiv
from pyvt.worker.input_batch import InputBatch, RequestRow
from pyvt.worker.logits_rows import LogitsRow

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
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
) -> StepInputs:
    """Return the inputs of a step; requests in the order of ``num_scheduled_tokens``."""
    requests = [rows[request_id] for request_id in num_scheduled_tokens]
    row_ids = np.fromiter((request.row for request in requests), np.int64, len(requests))
    num_new = np.fromiter(num_scheduled_tokens.values(), np.int64, len(requests))
    computed = rows.num_computed_tokens[row_ids]
    seq_lens = computed + num_new
    is_sampled = seq_lens == rows.num_tokens[row_ids]
    assert np.all(seq_lens <= rows.num_tokens[row_ids]), "a grant ends at the last known token"

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
        logits_indices=(cu_seqlens_q[1:][is_sampled] - 1).astype(np.int32),
        kv_caches=kv_caches,
        layer_groups=layer_groups,
    )
    return StepInputs(
        input_ids=rows.token_ids[token_rows, positions],
        batch=batch,
        requests=tuple(requests),
        wanted=tuple(LogitsRow(r) for r, ends in zip(requests, is_sampled, strict=True) if ends),
    )
