"""Rows of requests."""

import pytest

from pyvt.messages import CachedRequestData, SchedulerOutput
from pyvt.worker.input_batch import InputBatch
from tests.worker.steps import BLOCK_SIZE, MAX_MODEL_LEN, blocks_of, new_request, step


@pytest.fixture
def rows() -> InputBatch:
    """No requests yet."""
    return InputBatch(
        max_num_seqs=3, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, vocab_size=97
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


def test_request_with_penalties_keeps_each_token_of_its_prompt_once(rows: InputBatch) -> None:
    rows.add(new_request("a", [2, 1, 2], output=[5, 5], presence_penalty=0.5))

    rows.append_sampled({"a": (5,)})

    prompt_ids = rows["a"].prompt_ids
    assert prompt_ids is not None
    assert prompt_ids.tolist() == [1, 2]


def test_tokens_of_a_step_are_appended_to_each_row(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2]))
    rows.add(new_request("b", [3]))
    rows.add(new_request("c", [4]))

    rows.append_sampled({"c": (8, 9, 7), "a": (5,)})
    rows.append_sampled({})

    assert rows.known_tokens(rows["a"]).tolist() == [1, 2, 5]
    assert rows.known_tokens(rows["b"]).tolist() == [3]
    assert rows.known_tokens(rows["c"]).tolist() == [4, 8, 9, 7]


def test_group_of_a_step_follows_the_rows(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2]))
    rows.add(new_request("b", [3]))
    first = rows.group(["b", "a"])

    assert rows.group(["b", "a"]) is first
    rows.remove("b")
    rows.add(new_request("c", [4]))
    rows.add(new_request("b", [9, 9]))
    again = rows.group(["b", "a"])
    assert again.row_ids.tolist() == [rows["b"].row, rows["a"].row]
    assert again.requests == (rows["b"], rows["a"])
    assert rows.group(["a"]).row_ids.tolist() == [rows["a"].row]


def test_request_without_penalties_keeps_no_ids(rows: InputBatch) -> None:
    rows.add(new_request("a", [1, 2]))

    assert rows["a"].prompt_ids is None
    assert not rows["a"].has_processors


@pytest.mark.parametrize(("seed", "stored"), [(5, 5), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_seed_is_kept_as_64_bits(rows: InputBatch, seed: int, stored: int) -> None:
    rows.add(new_request("a", [1], seed=seed))

    assert int(rows.seeds[rows["a"].row]) == stored
