"""Laws of sampling that no single case can say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.ops.splitmix import splitmix64, uniforms
from pyvt.testing.op_cases import ALL_CASES, OpCase
from pyvt.testing.op_cases.case import normal

Array = np.ndarray[Any, Any]
F32 = np.float32
NUM_DRAWS = 6000
# Upper 0.001 points of the chi-square distribution, by degrees of freedom.
CRITICAL = {4: 18.47, 7: 24.32, 15: 37.70}

IN_PLACE = [case for case in ALL_CASES if case.op.startswith("apply_") or case.op == "log_softmax"]


def draws(logits: list[float], seeds: Any, positions: Any) -> Array:
    """Draw from one row of logits for every pair of seed and position."""
    seeds, positions = np.broadcast_arrays(seeds, positions)
    rows = np.tile(np.array(logits, F32), (len(seeds), 1))
    return ops.random_sample(rows, seeds.astype(np.uint64), positions.astype(np.int64))


def chi_square(counts: Array, shares: Array) -> float:
    expected = shares * counts.sum()
    return float((np.square(counts - expected) / expected).sum())


def softmax(logits: list[float]) -> Array:
    weights = np.exp(np.array(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in IN_PLACE])
def test_logits_op_in_place_equals_a_new_array(case: OpCase) -> None:
    want = getattr(ops, case.op)(**case.inputs("f32"))
    inputs = case.inputs("f32")

    returned = getattr(ops, case.op)(**inputs, out=inputs["logits"])

    assert returned is inputs["logits"]
    np.testing.assert_array_equal(returned, want)


def test_filters_keep_the_bits_of_a_row_that_is_off() -> None:
    logits = normal(np.random.default_rng(0), np.dtype(F32), 1, 40)
    logits[0, :3] = (-0.0, np.nan, -np.inf)

    got = ops.apply_temperature(logits, np.ones(1, F32))
    got = ops.apply_min_p(got, np.zeros(1, F32))
    got = ops.apply_top_k_top_p(got, np.zeros(1, np.int32), np.ones(1, F32))

    assert got.tobytes() == logits.tobytes()


@settings(derandomize=True, deadline=None)
@given(row=st.lists(st.integers(-3, 3), min_size=1, max_size=12), seed=st.integers(0, 2**64 - 1))
def test_greedy_equals_top_k_one_equals_temperature_zero(row: list[int], seed: int) -> None:
    logits = np.array([row], F32)
    one, keys = np.ones(1, np.int32), (np.array([seed], np.uint64), np.zeros(1, np.int64))

    greedy = ops.argmax(logits).item()
    top_1 = ops.random_sample(ops.apply_top_k_top_p(logits, one, np.ones(1, F32)), *keys).item()
    top_0 = ops.random_sample(ops.apply_top_k_top_p(logits, 0 * one, np.zeros(1, F32)), *keys)
    cold = ops.argmax(ops.apply_temperature(logits, np.zeros(1, F32))).item()

    assert greedy == row.index(max(row))
    assert (top_1, top_0.item(), cold) == (greedy, greedy, greedy)


@settings(derandomize=True, deadline=None)
@given(
    row=st.lists(st.sampled_from([-np.inf, -2.0, 0.0, 1.0, 1.5]), min_size=1, max_size=30),
    top_k=st.integers(-1, 40),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_filters_keep_the_greedy_token(
    row: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.array([row], np.float64)

    got = ops.apply_min_p(logits, np.array([min_p]))
    got = ops.apply_top_k_top_p(got, np.array([top_k], np.int32), np.array([top_p]))

    assert ops.argmax(got) == ops.argmax(logits)
    kept = np.isfinite(got)
    np.testing.assert_array_equal(got[kept], logits[kept])


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        pytest.param(2, 1.0, [1, 3, 4], id="ties_with_the_kth_stay"),
        pytest.param(1, 1.0, [1], id="one_keeps_the_first_of_the_best"),
        pytest.param(0, 0.0, [1], id="no_share_keeps_one"),
        pytest.param(0, 0.6, [1, 3], id="ties_fall_to_the_lowest_id"),
        pytest.param(2, 0.5, [1, 3], id="shares_of_the_top_k_alone"),
        pytest.param(9, 1.0, [0, 1, 2, 3, 4], id="more_than_the_vocabulary"),
    ],
)
def test_top_k_top_p_keeps(top_k: int, top_p: float, kept: list[int]) -> None:
    """Tokens 1, 3 and 4 have probability 0.3 each, 0 and 2 have 0.05."""
    logits = np.log(np.array([[0.05, 0.3, 0.05, 0.3, 0.3]]))

    got = ops.apply_top_k_top_p(logits, np.array([top_k], np.int32), np.array([top_p]))

    assert np.flatnonzero(np.isfinite(got[0])).tolist() == kept


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.1, 100), (0.5, 500), (0.9999, 1000)])
def test_top_p_of_a_flat_row_keeps_its_share(top_p: float, num_kept: int) -> None:
    got = ops.apply_top_k_top_p(np.zeros((1, 1000)), np.zeros(1, np.int32), np.array([top_p]))

    assert np.flatnonzero(np.isfinite(got[0])).tolist() == list(range(num_kept))


def test_min_p_of_one_keeps_the_ties_of_the_best() -> None:
    got = ops.apply_min_p(np.array([[2.0, 1.0, 2.0]], F32), np.ones(1, F32))

    assert got.tolist() == [[2.0, -np.inf, 2.0]]


BAD_ROWS = {
    "nan": [1.0, np.nan, 2.0],
    "plus_inf": [1.0, np.inf, 2.0],
    "nothing_left": [-np.inf, -np.inf, -np.inf],
}


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in BAD_ROWS.items()])
def test_row_without_a_finite_maximum_gives_no_token_and_harms_no_other(row: list[float]) -> None:
    logits = np.array([[0.0, 50.0, 0.0], row, [0.0, 0.0, 50.0]], F32)
    top_k, top_p, min_p = np.full(3, 2, np.int32), np.full(3, 0.9, F32), np.full(3, 0.1, F32)

    got = ops.apply_top_k_top_p(ops.apply_min_p(logits, min_p), top_k, top_p)

    assert ops.argmax(logits).tolist() == [1, ops.NO_TOKEN, 2]
    assert ops.argmax(got).tolist() == [1, ops.NO_TOKEN, 2]
    drawn = ops.random_sample(got, np.arange(3, dtype=np.uint64), np.zeros(3, np.int64))
    assert drawn.tolist() == [1, ops.NO_TOKEN, 2]


def test_count_nonfinite_counts_every_kind() -> None:
    logits = np.array([[1.0, np.nan, np.inf], [0.0, -np.inf, 1.0], [0.0, 1.0, 2.0]], np.float16)

    assert ops.count_nonfinite(logits).tolist() == [2, 1, 0]


def test_row_with_one_token_left_always_draws_it() -> None:
    logits = [-np.inf] * 5 + [-80.0] + [-np.inf] * 3

    assert set(draws(logits, np.arange(200), 3).tolist()) == {5}


@pytest.mark.parametrize(
    ("seeds", "positions"),
    [
        pytest.param(1234, np.arange(NUM_DRAWS), id="positions"),
        pytest.param(np.arange(NUM_DRAWS), 5, id="seeds"),
    ],
)
def test_random_sample_follows_the_softmax(seeds: Any, positions: Any) -> None:
    logits = [0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, -np.inf, 0.0]

    counts = np.bincount(draws(logits, seeds, positions), minlength=9)

    assert counts[7] == 0
    used = np.arange(9) != 7
    assert chi_square(counts[used], softmax(logits)[used]) < CRITICAL[7]


def test_random_sample_of_neighbours_is_independent() -> None:
    """Pairs of draws at positions 2i and 2i + 1 follow the product of their distributions."""
    logits = [0.0, 0.5, 1.0, -0.5]
    drawn = draws(logits, 7, np.arange(2 * NUM_DRAWS))

    counts = np.bincount(4 * drawn[::2] + drawn[1::2], minlength=16)

    shares = np.outer(softmax(logits), softmax(logits)).ravel()
    assert chi_square(counts, shares) < CRITICAL[15]


def test_random_sample_after_filters_follows_the_kept_tokens() -> None:
    logits = np.tile(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], F32), (NUM_DRAWS, 1))
    rows = np.ones(NUM_DRAWS, F32)

    warm = ops.apply_temperature(logits, 4 * rows)
    kept = ops.apply_top_k_top_p(warm, np.full(NUM_DRAWS, 5, np.int32), rows)
    seeds, positions = np.full(NUM_DRAWS, 99, np.uint64), np.arange(NUM_DRAWS)
    counts = np.bincount(ops.random_sample(kept, seeds, positions), minlength=8)

    assert counts[:3].sum() == 0
    assert chi_square(counts[3:], softmax([0.75, 1.0, 1.25, 1.5, 1.75])) < CRITICAL[4]


@settings(derandomize=True, deadline=None, max_examples=30)
@given(order=st.permutations(range(6)), num=st.integers(1, 6))
def test_random_sample_does_not_depend_on_the_batch(order: list[int], num: int) -> None:
    logits = normal(np.random.default_rng(0), np.dtype(F32), 6, 50)
    seeds, positions = np.array([3, 1, 4, 1, 5, 9], np.uint64), np.arange(6)
    want = ops.random_sample(logits, seeds, positions)

    rows = order[:num]
    got = ops.random_sample(logits[rows], seeds[rows], positions[rows])

    np.testing.assert_array_equal(got, want[rows])


def test_random_sample_depends_on_seed_and_position() -> None:
    flat = [0.0] * 1000

    assert len(set(draws(flat, 1, np.arange(50)).tolist())) > 40
    assert len(set(draws(flat, np.arange(50), 1).tolist())) > 40


def test_splitmix64_gives_the_published_outputs() -> None:
    """Outputs of the generator's public implementations for the seed 1234567."""
    want = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]

    got = splitmix64(np.array([1234567], np.uint64), np.arange(5, dtype=np.uint64))

    assert got.tolist() == want


def test_uniforms_are_inside_the_unit_interval_and_even() -> None:
    u = uniforms(np.array([5], np.uint64), np.arange(20_000))

    assert u.min() > 0
    assert u.max() < 1
    counts = np.bincount((u * 16).astype(int), minlength=16)
    assert chi_square(counts, np.full(16, 1 / 16)) < CRITICAL[15]


ONE = np.ones(1, F32)
BAD_PARAMETERS = {
    "cold": (
        ops.apply_temperature,
        (-ONE,),
        "temperature: expected every value at least 0, got -1",
    ),
    "nan": (ops.apply_temperature, (ONE * np.nan,), "temperature: expected every value at least 0"),
    "min_p": (ops.apply_min_p, (2 * ONE,), "min_p: expected every value from 0 to 1, got 2"),
    "top_p": (ops.apply_top_k_top_p, (np.ones(1, np.int32), -ONE), "top_p: expected every value"),
    "rows": (ops.apply_min_p, (np.ones(2, F32),), "min_p: expected R=1, got 2"),
}


@pytest.mark.parametrize(
    ("op", "parameters", "text"), [pytest.param(*v, id=k) for k, v in BAD_PARAMETERS.items()]
)
def test_bad_parameter_is_refused(op: Any, parameters: tuple[Array, ...], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        op(np.zeros((1, 4), F32), *parameters)


@pytest.mark.parametrize("op", [ops.argmax, lambda x: draws(x[0].tolist(), [1], [1])])
def test_choice_from_no_vocabulary_is_refused(op: Any) -> None:
    with pytest.raises(ShapeError, match="logits: expected at least one token"):
        op(np.zeros((1, 0), F32))


def test_random_sample_of_signed_seeds_is_refused() -> None:
    with pytest.raises(DTypeError, match="seeds: expected u64, got int64"):
        ops.random_sample(np.zeros((1, 4), F32), np.zeros(1, np.int64), np.zeros(1, np.int64))


def test_random_sample_draws_unlikely_tokens_as_often_as_it_should() -> None:
    """A token of one part in 400 is 6 below the best: the noise must reach that far."""
    logits = [0.0, -6.0]

    drawn = draws(logits, np.arange(40_000), 0)

    expected = softmax(logits)[1] * 40_000
    assert abs(int(drawn.sum()) - expected) < 4 * expected**0.5


def test_uniforms_are_the_middles_of_their_steps() -> None:
    """So neither end is ever given, whose logarithm has none."""
    state, token_id = 12345, 7
    bits = int(splitmix64(np.array([state], np.uint64), np.array([token_id], np.uint64))[0])

    drawn = uniforms(np.array([state], np.uint64), np.array([token_id]))

    assert drawn.tolist() == [((bits >> 12) + 0.5) / 2**52]
