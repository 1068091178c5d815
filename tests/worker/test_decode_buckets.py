"""Padding of decode steps: few shapes, and nothing that is added can write."""

import itertools

import numpy as np
import pytest

from pyvt.layers.forward_batch import NO_SLOTS, ForwardBatch
from pyvt.worker.decode_buckets import (
    MAX_TOKENS,
    ORDER,
    bucket_of,
    is_decode,
    padded,
    padded_places,
    shape_of,
)


def batch_of(counts: list[int], *, has_states: bool = False) -> ForwardBatch:
    """A step of two cache groups in which request i has ``counts[i]`` tokens behind 10."""
    ends = np.cumsum([0, *counts])
    num_tokens = int(ends[-1])
    return ForwardBatch(
        num_tokens=num_tokens,
        num_reqs=len(counts),
        max_seqlen_q=max(counts),
        max_seq_len=10 + max(counts),
        positions=np.concatenate([10 + np.arange(count) for count in counts]),
        slot_mapping=np.arange(2 * num_tokens).reshape(2, -1) + 40,
        block_tables=np.full((2, len(counts), 3), 7, np.int32),
        seq_lens=np.array(counts, np.int32) + 10,
        cu_seqlens_q=ends.astype(np.int32),
        logits_indices=np.arange(num_tokens, dtype=np.int32),
        kv_caches=(),
        layer_groups=(),
        initial_slots=np.ones(len(counts), np.int32) if has_states else NO_SLOTS,
        state_slots=np.ones(num_tokens, np.int32) if has_states else NO_SLOTS,
    )


def test_buckets_are_few_and_hold_what_they_are_for() -> None:
    sizes = [bucket_of(count) for count in range(1, MAX_TOKENS + 1)]

    assert all(size >= count for count, size in enumerate(sizes, 1))
    assert sizes == sorted(sizes)
    assert sorted(set(sizes))[:7] == [1, 2, 4, 8, 16, 32, 48]
    assert len(set(sizes)) == 36
    assert sizes[-1] == MAX_TOKENS


@pytest.mark.parametrize("num_reqs", [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 40])
@pytest.mark.parametrize("num_more", [0, 1, 2, 3, 7, 20])
def test_added_tokens_have_requests_to_belong_to(num_reqs: int, num_more: int) -> None:
    num_tokens = num_reqs + num_more

    reqs, tokens = shape_of(num_reqs, num_tokens)

    assert tokens - num_tokens >= reqs - num_reqs >= 0
    assert (reqs > num_reqs) == (tokens > num_tokens)
    assert (bucket_of(reqs), bucket_of(tokens)) == (reqs, tokens)


@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [1] * 5, [3, 1], [2, 2, 3], [1, 4, 1, 1, 2]])
@pytest.mark.parametrize("has_states", [False, True])
def test_padding_reads_the_null_block_and_writes_nothing(
    counts: list[int], has_states: bool
) -> None:
    batch = batch_of(counts, has_states=has_states)
    input_ids = np.arange(batch.num_tokens) + 90

    found = padded(input_ids, batch, max_blocks=5)

    reqs, tokens = shape_of(batch.num_reqs, batch.num_tokens)
    assert tuple(found) == ORDER
    assert found["input_ids"].tolist() == [*input_ids, *[0] * (tokens - batch.num_tokens)]
    assert found["slot_mapping"].shape == (2, tokens)
    assert (found["slot_mapping"][:, : batch.num_tokens] == batch.slot_mapping).all()
    assert (found["slot_mapping"][:, batch.num_tokens :] == -1).all()
    tables = found["block_tables"]
    assert tables.shape == (2, reqs, 5)
    assert (tables[:, : batch.num_reqs, :3] == 7).all()
    assert tables.sum() == 7 * 6 * batch.num_reqs
    lengths = np.diff(found["cu_seqlens_q"])
    assert lengths.sum() == tokens
    assert lengths.min() == 1
    # A request that is added starts at its first token.
    assert (found["seq_lens"][batch.num_reqs :] == lengths[batch.num_reqs :]).all()
    ends = found["cu_seqlens_q"][batch.num_reqs :]
    for start, end in itertools.pairwise(ends):
        assert found["positions"][start:end].tolist() == list(range(end - start))
    for name in ("initial_slots", "state_slots"):
        if has_states:
            given = getattr(batch, name)
            assert found[name].tolist() == [*given, *[-1] * (len(found[name]) - len(given))]
        else:
            assert found[name].size == 0
    assert {array.dtype for array in found.values()} == {np.dtype(np.int32), np.dtype(np.int64)}


@pytest.mark.parametrize("num_reqs", [1, 2, 3, 5])
def test_places_made_ahead_are_those_of_the_step(num_reqs: int) -> None:
    batch = batch_of([1] * num_reqs, has_states=True)
    each = (batch.positions, batch.slot_mapping, batch.seq_lens, batch.cu_seqlens_q)
    want = padded(batch.positions, batch, max_blocks=5)
    batch.positions = batch.slot_mapping = batch.seq_lens = batch.cu_seqlens_q = np.empty(0)

    ahead = padded_places(*each)

    batch.positions = each[0]
    found = padded(each[0], batch, max_blocks=5, places=ahead)
    assert tuple(found) == ORDER
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)


def test_steps_with_tokens_that_get_no_logits_are_no_decode_steps() -> None:
    batch = batch_of([4, 1])
    assert is_decode(batch)

    batch.logits_indices = np.array([3, 4], np.int32)

    assert not is_decode(batch)
    assert not is_decode(batch_of([1] * (MAX_TOKENS + 1)))
