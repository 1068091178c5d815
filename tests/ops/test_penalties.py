"""Laws of bias, bans, masks and penalties that no single case can say."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]
F32 = np.float32


def ids(*values: int) -> Array:
    return np.array(values, np.int64)


def penalties(**changes: Any) -> dict[str, Any]:
    """Return a call with one row: token 0 is new, 1 in the prompt, 2 and 3 in the output."""
    call = {
        "logits": np.array([[2.0, 2.0, 2.0, -2.0]], F32),
        "row_ids": ids(0, 0, 0, 0, 0, 0),
        "token_ids": ids(2, 1, 3, 2, 3, 2),
        "is_output": np.array([True, False, False, True, True, True]),
        "repetition": np.ones(1, F32),
        "presence": np.zeros(1, F32),
        "frequency": np.zeros(1, F32),
    }
    return call | {name: np.array([value], F32) for name, value in changes.items()}


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({}, [2.0, 2.0, 2.0, -2.0], id="off"),
        pytest.param({"repetition": 2.0}, [2.0, 1.0, 1.0, -4.0], id="repetition_once"),
        pytest.param({"presence": 0.5}, [2.0, 2.0, 1.5, -2.5], id="presence_of_output_only"),
        pytest.param({"frequency": 0.5}, [2.0, 2.0, 0.5, -2.5], id="frequency_by_count"),
        pytest.param(
            {"repetition": 2.0, "presence": 0.5, "frequency": 0.25},
            [2.0, 1.0, -0.25, -4.75],
            id="repetition_before_the_others",
        ),
    ],
)
def test_apply_penalties_follows_the_formulas(changes: dict[str, float], want: list[float]) -> None:
    assert ops.apply_penalties(**penalties(**changes)).tolist() == [want]


@pytest.mark.parametrize(
    "changes", [{"repetition": 0.0}, {"repetition": np.inf}, {"presence": np.nan}]
)
def test_apply_penalties_with_a_bad_penalty_is_refused(changes: dict[str, float]) -> None:
    (name,) = changes

    with pytest.raises(ShapeError, match=rf"\[apply_penalties\] {name}: expected every value"):
        ops.apply_penalties(**penalties(**changes))


def test_apply_penalties_counts_a_token_of_a_prompt_once() -> None:
    """However often it is named."""
    twice = {"row_ids": ids(0, 0), "token_ids": ids(1, 1), "is_output": np.zeros(2, np.bool_)}

    got = ops.apply_penalties(**penalties(repetition=2.0, presence=1.0) | twice)

    assert got.tolist() == [[2.0, 1.0, 2.0, -2.0]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token_ids": ids(2, 1, 4, 2, 3, 2)}, r"token_ids: expected values in \[0, 4\), got 4"),
        ({"row_ids": ids(0, 0, 0, 1, 0, 0)}, r"row_ids: expected values in \[0, 1\), got 1"),
        ({"is_output": np.zeros(5, np.bool_)}, r"is_output: expected M=6, got 5"),
    ],
)
def test_apply_penalties_of_tokens_outside_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        ops.apply_penalties(**penalties() | changes)


def test_apply_banned_ids_of_end_tokens_holds_back_the_end() -> None:
    """Minimum lengths: while a request is short, its end tokens are banned."""
    logits = np.array([[0.0, 9.0, 1.0], [0.0, 9.0, 1.0]], F32)

    got = ops.apply_banned_ids(logits, ids(0), ids(1))

    assert ops.argmax(got).tolist() == [2, 1]


def test_apply_allowed_ids_touches_only_named_rows() -> None:
    logits = np.arange(8, dtype=F32).reshape(2, 4)

    got = ops.apply_allowed_ids(logits, ids(1, 1), ids(2, 0))

    assert got.tolist() == [[0, 1, 2, 3], [4, -np.inf, 6, -np.inf]]


def test_apply_logit_bias_of_minus_inf_removes_a_token() -> None:
    logits = np.array([[1.0, 2.0]], F32)

    got = ops.apply_logit_bias(logits, ids(0), ids(1), np.array([-np.inf], F32))

    assert got.tolist() == [[1.0, -np.inf]]


def test_apply_logit_bias_does_not_bring_back_a_masked_token() -> None:
    logits = np.array([[1.0, -np.inf]], F32)

    got = ops.apply_logit_bias(logits, ids(0), ids(1), np.array([100.0], F32))

    assert got.tolist() == [[1.0, -np.inf]]


def test_apply_token_mask_of_a_forbidden_row_leaves_no_token() -> None:
    got = ops.apply_token_mask(np.ones((2, 3), F32), np.array([[False] * 3, [True] * 3]))

    assert ops.argmax(got).tolist() == [ops.NO_TOKEN, 0]


@pytest.mark.parametrize(
    ("row_id", "token_id", "text"),
    [
        (2, 0, r"row_ids: expected values in \[0, 2\), got 2"),
        (-1, 0, r"row_ids: expected values in \[0, 2\), got -1"),
        (0, 3, r"token_ids: expected values in \[0, 3\), got 3"),
        (0, -1, r"token_ids: expected values in \[0, 3\), got -1"),
    ],
)
def test_pairs_outside_the_logits_are_refused(row_id: int, token_id: int, text: str) -> None:
    logits = np.zeros((2, 3), F32)

    for op in (ops.apply_banned_ids, ops.apply_allowed_ids):
        with pytest.raises(ShapeError, match=text):
            op(logits, ids(row_id), ids(token_id))


def test_pairs_of_another_length_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"token_ids: expected M=1, got 2"):
        ops.apply_banned_ids(np.zeros((2, 3), F32), ids(0), ids(0, 1))


def test_apply_token_mask_of_integers_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"mask: expected bool, got int64"):
        ops.apply_token_mask(np.zeros((2, 3), F32), np.ones((2, 3), np.int64))
