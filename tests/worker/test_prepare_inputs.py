"""From rows to index arrays."""

import numpy as np
import pytest

from pyvt.worker.input_batch import InputBatch
from pyvt.worker.prepare_inputs import prepare_inputs
from tests.worker.steps import BLOCK_SIZE, MAX_MODEL_LEN, blocks_of, new_request, step


@pytest.fixture
def rows() -> InputBatch:
    """Rows of two requests: ``a`` with 6 tokens, ``b`` with 9."""
    batch = InputBatch(
        max_num_seqs=4, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, vocab_size=97
    )
    batch.add(new_request("a", range(10, 16), slot=0))
    batch.add(new_request("b", range(20, 29), slot=1))
    return batch


def test_chunk_and_decode_lie_side_by_side(rows: InputBatch) -> None:
    rows.update(step({}, computed={"a": 5, "b": 3}))

    inputs = prepare_inputs(rows, {"b": 4, "a": 1}, ())

    batch = inputs.batch
    blocks = np.array([blocks_of(1), blocks_of(0)])
    assert inputs.input_ids.tolist() == [23, 24, 25, 26, 15]
    assert batch.positions.tolist() == [3, 4, 5, 6, 5]
    assert batch.seq_lens.tolist() == [7, 6]
    assert batch.cu_seqlens_q.tolist() == [0, 4, 5]
    assert batch.block_tables.tolist() == [blocks[:, :2].tolist()]
    assert batch.slot_mapping[0].tolist() == [
        blocks[0, 0] * BLOCK_SIZE + 3,
        blocks[0, 1] * BLOCK_SIZE,
        blocks[0, 1] * BLOCK_SIZE + 1,
        blocks[0, 1] * BLOCK_SIZE + 2,
        blocks[1, 1] * BLOCK_SIZE + 1,
    ]
    assert (batch.num_tokens, batch.num_reqs) == (5, 2)
    assert (batch.max_seqlen_q, batch.max_seq_len) == (4, 7)


def test_only_requests_that_reach_their_last_token_are_sampled(rows: InputBatch) -> None:
    rows.update(step({}, computed={"a": 5, "b": 3}))

    inputs = prepare_inputs(rows, {"b": 4, "a": 1}, ())

    assert [row.request.request_id for row in inputs.wanted] == ["a"]
    assert inputs.batch.logits_indices.tolist() == [4]


def test_index_arrays_have_the_dtypes_of_the_contract(rows: InputBatch) -> None:
    batch = prepare_inputs(rows, {"a": 6, "b": 9}, ()).batch

    assert {batch.positions.dtype, batch.slot_mapping.dtype} == {np.dtype(np.int64)}
    assert {
        batch.block_tables.dtype,
        batch.seq_lens.dtype,
        batch.cu_seqlens_q.dtype,
        batch.logits_indices.dtype,
    } == {np.dtype(np.int32)}


def test_a_grant_past_the_last_token_is_a_fault_of_the_scheduler(rows: InputBatch) -> None:
    with pytest.raises(AssertionError, match="last known token"):
        prepare_inputs(rows, {"a": 7}, ())


def test_decode_step_has_the_rows_of_a_mixed_step(rows: InputBatch) -> None:
    rows.add(new_request("c", range(30, 35), slot=2))
    rows.update(step({}, computed={"a": 5, "b": 3, "c": 0}))

    decode = prepare_inputs(rows, {"b": 1, "a": 1}, ())
    mixed = prepare_inputs(rows, {"b": 1, "a": 1, "c": 2}, ())

    assert [row.request.request_id for row in decode.wanted] == ["a"]
    np.testing.assert_array_equal(decode.input_ids, mixed.input_ids[:2])
    for name in ("positions", "slot_mapping", "seq_lens", "cu_seqlens_q", "logits_indices"):
        ours, theirs = getattr(decode.batch, name), getattr(mixed.batch, name)
        np.testing.assert_array_equal(ours, theirs[..., : ours.shape[-1]])
        assert ours.dtype == theirs.dtype
    width = decode.batch.block_tables.shape[2]
    tables = mixed.batch.block_tables[:, :2, :width]
    np.testing.assert_array_equal(decode.batch.block_tables, tables)
    assert decode.batch.max_seq_len == 6


def test_drafts_lie_behind_the_last_token_and_get_a_row_of_logits_each(rows: InputBatch) -> None:
    rows.update(step({}, computed={"a": 5, "b": 3}))
    drafts = {"a": (70, 71)}

    rows.place_drafts(drafts)
    inputs = prepare_inputs(rows, {"b": 4, "a": 3}, (), drafts=drafts)

    assert inputs.input_ids.tolist() == [23, 24, 25, 26, 15, 70, 71]
    assert inputs.batch.positions.tolist() == [3, 4, 5, 6, 5, 6, 7]
    assert inputs.batch.seq_lens.tolist() == [7, 8]
    assert inputs.batch.logits_indices.tolist() == [4, 5, 6]
    assert [row.ahead for row in inputs.wanted] == [(), (70,), (70, 71)]
    assert rows.known_tokens(rows["a"]).tolist() == list(range(10, 16))


def test_rows_of_logits_of_several_requests_follow_each_other(rows: InputBatch) -> None:
    rows.update(step({}, computed={"a": 5, "b": 8}))
    drafts = {"b": (70, 71, 72)}

    rows.place_drafts(drafts)
    inputs = prepare_inputs(rows, {"a": 1, "b": 4}, (), drafts=drafts)

    assert inputs.batch.logits_indices.tolist() == [0, 1, 2, 3, 4]
    assert [row.request.request_id for row in inputs.wanted] == ["a", "b", "b", "b", "b"]
