"""Decode steps of few sizes: requests and tokens are rounded up, and what is added cannot write.

A device replays a captured step for sizes that it was captured for. So a decode step gets padding
up to the next bucket, whether it is captured or not: both then run the same kernels over the same
rows. Padding are requests behind the real ones; they read the null block, their KV goes to slot −1,
their state starts empty and is not kept.

Dims: R requests and T tokens of the step, Rb and Tb those of the bucket, G cache groups.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyvt.layers.forward_batch import ForwardBatch
from pyvt.mathutil import cdiv

Array = np.ndarray[Any, Any]

_SMALL = (1, 2, 4, 8, 16)
_STRIDE = 16
# Larger steps are long beside the launches of their kernels.
MAX_TOKENS = 512
_NOTHING = -1

# The arrays of a step, those that never stay the same first.
ORDER = (
    "input_ids",
    "initial_slots",
    "state_slots",
    "positions",
    "slot_mapping",
    "seq_lens",
    "cu_seqlens_q",
    "block_tables",
)


def bucket_of(count: int) -> int:
    """Return the smallest bucket that holds so many requests or tokens."""
    return next((size for size in _SMALL if size >= count), cdiv(count, _STRIDE) * _STRIDE)


def shape_of(num_reqs: int, num_tokens: int) -> tuple[int, int]:
    """Return Rb and Tb; where tokens are added, so is a request that they belong to."""
    if num_reqs == num_tokens:
        return bucket_of(num_reqs), bucket_of(num_reqs)
    reqs = bucket_of(num_reqs + (bucket_of(num_tokens) > num_tokens))
    return reqs, bucket_of(num_tokens + reqs - num_reqs)


def is_decode(batch: ForwardBatch) -> bool:
    """Whether a step has a token of each request, or tokens that all get logits."""
    num_tokens = batch.num_tokens
    is_whole = num_tokens in (batch.num_reqs, len(batch.logits_indices))
    return is_whole and num_tokens <= MAX_TOKENS


def padded(
    input_ids: Array,
    batch: ForwardBatch,
    max_blocks: int,
    places: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the arrays of a decode step in their bucket, in ``ORDER``.

    Args:
        input_ids: ``[T]`` i64.
        batch: the step.
        max_blocks: columns of the block tables: as many as the longest request can have.
        places: what ``padded_places`` gave for this step, where that was made ahead.
    """
    num_reqs, num_tokens = shape_of(batch.num_reqs, batch.num_tokens)
    if places is None:
        each = (batch.positions, batch.slot_mapping, batch.seq_lens, batch.cu_seqlens_q)
        places = padded_places(*each)
    found = {
        "input_ids": _grown(input_ids, num_tokens, 0),
        "initial_slots": _states(batch.initial_slots, num_reqs),
        "state_slots": _states(batch.state_slots, num_tokens),
        **places,
        "block_tables": padded_tables(batch.block_tables, num_reqs, max_blocks),
    }
    assert tuple(found) == ORDER, "groups are filled in order"
    return found


def padded_places(
    positions: Array, slot_mapping: Array, seq_lens: Array, cu_seqlens_q: Array
) -> dict[str, Array]:
    """Return these arrays of a step in their bucket; its tokens need not be known for them."""
    num_real, num_real_reqs = len(positions), len(seq_lens)
    num_reqs, num_tokens = shape_of(num_real_reqs, num_real)
    counts = np.ones(num_reqs - num_real_reqs, np.int32)
    if counts.size:
        counts[0] += num_tokens - num_real - counts.size
    grown = _grown(positions, num_tokens, 0)
    if counts.size:
        grown[num_real : num_real + counts[0]] = np.arange(counts[0])
    starts = np.concatenate([cu_seqlens_q, num_real + np.cumsum(counts)])
    return {
        "positions": grown,
        "slot_mapping": _grown(slot_mapping, num_tokens, _NOTHING),
        "seq_lens": np.concatenate([seq_lens, counts]),
        "cu_seqlens_q": starts.astype(np.int32),
    }


def padded_tables(block_tables: Array, num_reqs: int, max_blocks: int) -> Array:
    """Return block tables ``[G, Rb, max_blocks]``; what is added names the null block."""
    found = np.zeros((len(block_tables), num_reqs, max_blocks), np.int32)
    found[:, : block_tables.shape[1], : block_tables.shape[2]] = block_tables
    return found


def _grown(array: Array, size: int, value: int) -> Array:
    """Return ``array`` with a last axis of ``size``, filled up with ``value``."""
    found = np.full((*array.shape[:-1], size), value, array.dtype)
    found[..., : array.shape[-1]] = array
    return found


def _states(slots: Array, size: int) -> Array:
    """Return slots filled up with none; empty in a model without states."""
    return _grown(slots, size, _NOTHING) if slots.size else slots
