"""Laws of log-probabilities that no single case can say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.ops.selection import largest

Array = np.ndarray[Any, Any]


def make_logits(num_rows: int = 3, vocab_size: int = 50) -> Array:
    rng = np.random.default_rng(4)
    return (rng.standard_normal((num_rows, vocab_size)) * 5).astype(np.float32)


def ids(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20, 50])
def test_top_logprobs_are_those_of_log_softmax_for_any_number(num_top: int) -> None:
    logits, chosen = make_logits(), ids(3, 0, 49)
    want = ops.log_softmax(logits)

    top_ids, top_values, token_values, _ = ops.top_logprobs(logits, chosen, num_top)

    np.testing.assert_array_equal(top_values, np.take_along_axis(want, top_ids, 1))
    np.testing.assert_array_equal(token_values, want[np.arange(3), chosen])


def test_log_softmax_of_a_row_alone_is_equal_to_the_bit() -> None:
    logits = make_logits(8, 1001)

    np.testing.assert_array_equal(ops.log_softmax(logits[5:6]), ops.log_softmax(logits)[5:6])


def test_top_logprobs_rank_counts_ties_of_lower_ids() -> None:
    logits = np.array([[1.0, 3.0, 1.0, 2.0, 1.0]] * 3, np.float32)

    top_ids, _, _, ranks = ops.top_logprobs(logits, ids(0, 2, 4), 4)

    assert ranks.tolist() == [3, 4, 5]
    assert top_ids[0].tolist() == [1, 3, 0, 2]


def test_top_logprobs_of_finite_logits_are_finite_and_sum_to_one() -> None:
    _, top_values, _, _ = ops.top_logprobs(make_logits(), ids(0, 0, 0), 50)

    assert np.isfinite(top_values).all()
    np.testing.assert_allclose(np.exp(top_values).sum(-1), 1.0, rtol=1e-6)


def test_top_logprobs_do_not_change_the_logits() -> None:
    logits = make_logits()

    ops.top_logprobs(logits, ids(0, 1, 2), 5)

    np.testing.assert_array_equal(logits, make_logits())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_log_softmax_of_a_bad_row_is_nan_in_that_row(bad: float) -> None:
    logits = make_logits()
    logits[1, 7] = bad

    got = ops.log_softmax(logits)

    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


def test_log_softmax_of_a_row_without_tokens_is_nan() -> None:
    assert np.isnan(ops.log_softmax(np.full((1, 4), -np.inf, np.float32))).all()


def test_top_logprobs_of_a_row_with_nan_are_nan() -> None:
    logits = make_logits()
    logits[1, 7] = np.nan

    top_ids, top_values, _, _ = ops.top_logprobs(logits, ids(0, 0, 0), 3)

    assert np.isnan(top_values).all(axis=1).tolist() == [False, True, False]
    assert 7 not in top_ids[1]


def test_top_logprobs_into_out_are_written_and_returned() -> None:
    logits, chosen = make_logits(), ids(3, 0, 49)
    want = ops.top_logprobs(logits, chosen, 5)
    out = tuple(np.empty_like(array) for array in want)

    returned = ops.top_logprobs(logits, chosen, 5, out=out)

    for got, buffer, array in zip(returned, out, want, strict=True):
        assert got is buffer
        np.testing.assert_array_equal(got, array)


@settings(derandomize=True, deadline=None)
@given(
    values=st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40),
    data=st.data(),
)
def test_largest_is_the_head_of_the_stable_order(values: list[float], data: st.DataObject) -> None:
    num = data.draw(st.integers(0, len(values)))
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))

    assert largest(np.array(values, np.float32), num).tolist() == order[:num]


def test_largest_counts_nan_as_minus_inf() -> None:
    row = np.array([np.nan, 1.0, np.nan, 2.0], np.float32)

    assert largest(row, 3).tolist() == [3, 1, 0]


@pytest.mark.parametrize("token_id", [-1, 50])
def test_top_logprobs_of_a_token_outside_is_refused(token_id: int) -> None:
    with pytest.raises(ShapeError, match=r"token_ids: expected values in \[0, 50\)"):
        ops.top_logprobs(make_logits(), ids(0, token_id, 0), 5)


@pytest.mark.parametrize("num_top", [-1, 51])
def test_top_logprobs_of_a_bad_number_is_refused(num_top: int) -> None:
    with pytest.raises(
        ShapeError, match=r"num_top: expected (a number from 0 to V=50|an integer of at least 0)"
    ):
        ops.top_logprobs(make_logits(), ids(0, 0, 0), num_top)


def test_log_softmax_of_half_logits_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"\[log_softmax\] logits: expected f32\|f64"):
        ops.log_softmax(make_logits().astype(np.float16))
