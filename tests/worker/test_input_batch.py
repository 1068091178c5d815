"""Rows of requests."""

import numpy as np
import pytest

from pyvt.messages import CachedRequestData, SchedulerOutput
from pyvt.worker.input_batch import InputBatch
from tests.worker.steps import BLOCK_SIZE, MAX_MODEL_LEN, blocks_of, new_request, step


@pytest.fixture
def rows() -> InputBatch:
    """No requests yet."""
    return InputBatch(
        max_num_seqs=2, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, vocab_size=97
    )


def test_row_is_given_back_and_taken_again(rows: InputBatch) -> None:
    rows.update(step({}, new=[new_request("a", [1, 2]), new_request("b", [3], slot=1)]))
    row = rows["a"].row

    rows.update(step({}, new=[new_request("c", [4, 5, 6])], finished=["a"]))

    assert rows["c"].row == row
    assert "a" not in rows
    assert rows.num_tokens[row] == 3
    assert rows.token_ids[row, :3].tolist() == [4, 5, 6]


def test_one_step_may_forget_and_add_the_same_id(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2]))

    rows.update(step({}, new=[new_request("a", [1, 2], output=[9])], finished=["a"]))

    assert rows.num_tokens[rows["a"].row] == 3
    assert len(rows) == 1


def test_new_blocks_are_appended(rows: InputBatch) -> None:
    first = new_request("a", [1, 2])
    rows.add(first)
    more = CachedRequestData(request_id="a", new_block_ids=((70, 71),), num_computed_tokens=2)
    rows.num_blocks[rows["a"].row] = 3

    rows.update(SchedulerOutput(cached_requests=(more,)))

    row = rows["a"].row
    assert rows.block_tables[0, row, :5].tolist() == [*blocks_of(0)[:3], 70, 71]
    assert rows.num_computed_tokens[row] == 2


def test_penalties_count_prompt_and_output_apart(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2, 2], output=[5, 5], presence_penalty=0.5))
    request = rows["a"]

    rows.append_tokens(request, [5])

    assert request.prompt_mask is not None
    assert request.output_counts is not None
    assert np.flatnonzero(request.prompt_mask).tolist() == [1, 2]
    assert request.output_counts[5] == 3
    assert request.output_counts.sum() == 3


def test_request_without_penalties_keeps_no_counts(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2]))

    assert rows["a"].output_counts is None
    assert not rows["a"].has_processors


@pytest.mark.parametrize(("seed", "stored"), [(5, 5), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_seed_is_kept_as_64_bits(rows: InputBatch, seed: int, stored: int) -> None:
    rows.add(new_request("a", [1], seed=seed))

    assert int(rows.seeds[rows["a"].row]) == stored
