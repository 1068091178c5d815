"""Native sampling: the same tokens as the reference, with parameters as the engine holds them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import reference_call_counts, use_backend

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
else:
    ISAS = ["none"]

Array = np.ndarray[Any, Any]

# More than two pieces of a row, and no multiple of a vector.
VOCAB = 20_003
PARAMETER_DTYPES = (np.float32, np.float64)


@pytest.fixture(params=ISAS, autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """One level of the CPU after the other."""
    _native.use_isa(request.param)
    yield request.param
    use_backend("numpy")
    _native.set_num_threads(0)
    _native.use_isa("auto")


def _logits(num_rows: int, scale: float = 3.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows, VOCAB)) * scale).astype(np.float32)


def _both(op: str, *args: Any) -> tuple[Any, Any]:
    """Return what the native kernel and the reference give."""
    use_backend("numpy")
    want = getattr(ops, op)(*args)
    use_backend("cpu")
    num_before = reference_call_counts().get(op, 0)
    got = getattr(ops, op)(*args)
    assert reference_call_counts().get(op, 0) == num_before
    return got, want


def _column(values: list[float], num_rows: int, dtype: Any) -> Array:
    return np.resize(np.array(values), num_rows).astype(dtype)


@pytest.mark.parametrize("dtype", PARAMETER_DTYPES)
def test_temperature_has_the_bits_of_the_reference(dtype: Any) -> None:
    temperature = _column([0.7, 1.0, 0.0, 1e-5, 9e-6, 1.3], 6, dtype)

    got, want = _both("apply_temperature", _logits(6), temperature)

    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", PARAMETER_DTYPES)
def test_min_p_keeps_the_tokens_of_the_reference(dtype: Any) -> None:
    logits = _logits(5)
    logits[4] = -np.inf

    got, want = _both("apply_min_p", logits, _column([0.0, 0.01, 0.2, 1.0, 0.5], 5, dtype))

    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", PARAMETER_DTYPES)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_top_k_and_top_p_keep_the_tokens_of_the_reference(dtype: Any, scale: float) -> None:
    logits = _logits(8, scale)
    top_k = np.array([0, 1, 40, 5000, 0, 3, -1, VOCAB], np.int32)
    top_p = np.array([0.9, 0.9, 1.0, 0.5, 0.0, 0.95, 1.0, 0.999]).astype(dtype)

    got, want = _both("apply_top_k_top_p", logits, top_k, top_p)

    assert got.tobytes() == want.tobytes()


def test_top_p_of_equal_logits_keeps_the_lowest_ids() -> None:
    logits = np.zeros((2, VOCAB), np.float32)

    got, want = _both("apply_top_k_top_p", logits, np.zeros(2, np.int32), np.array([0.25, 0.75]))

    assert got.tobytes() == want.tobytes()
    assert np.flatnonzero(got[0] == 0).max() == np.count_nonzero(got[0] == 0) - 1


@pytest.mark.parametrize("dtype", PARAMETER_DTYPES)
def test_penalties_have_the_bits_of_the_reference(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    parameters = ([1.0, 1.1, 0.9], [0.0, 0.3, -1.0], [0.0, 0.7, 0.1])

    got, want = _both(
        "apply_penalties",
        _logits(3),
        rng.integers(0, 3, VOCAB),
        rng.integers(0, VOCAB, VOCAB),
        rng.random(VOCAB) < 0.5,
        *(_column(values, 3, dtype) for values in parameters),
    )

    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 100.0])
def test_a_draw_is_that_of_the_reference(scale: float) -> None:
    """A flat row makes nearly every token's noise count, a sharp one hardly any."""
    num_rows = 40
    logits = _logits(num_rows, scale)
    logits[:, ::7] = -np.inf
    seeds = np.random.default_rng(5).integers(0, 2**64, num_rows, np.uint64)
    positions = np.arange(num_rows, dtype=np.int64) * 1001

    got, want = _both("random_sample", logits, seeds, positions)

    np.testing.assert_array_equal(got, want)


def test_draws_follow_the_distribution() -> None:
    """30,000 draws of five tokens: every share within five standard deviations."""
    shares = np.array([0.5, 0.25, 0.15, 0.09, 0.01])
    num_draws = 30_000
    logits = np.tile(np.log(shares).astype(np.float32), (num_draws, 1))
    seeds, positions = np.full(num_draws, 11, np.uint64), np.arange(num_draws)
    use_backend("cpu")

    drawn = np.bincount(ops.random_sample(logits, seeds, positions), minlength=5) / num_draws

    assert (np.abs(drawn - shares) < 5 * np.sqrt(shares * (1 - shares) / num_draws)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 8191, 8192, VOCAB - 1])
def test_a_bad_row_gives_no_token_and_harms_no_other(bad: float, place: int) -> None:
    logits = _logits(3)
    logits[1, place] = bad
    seeds, positions = np.arange(3, dtype=np.uint64), np.zeros(3, np.int64)

    for args in (("argmax", logits), ("random_sample", logits, seeds, positions)):
        got, want = _both(*args)
        np.testing.assert_array_equal(got, want)
        assert got[1] == -1
    got, want = _both("count_nonfinite", logits)
    assert got.tolist() == want.tolist() == [0, 1, 0]
    filters = (np.full(3, 5, np.int32), np.full(3, 0.5))
    got, want = _both("apply_top_k_top_p", logits, *filters)
    assert got.tobytes() == want.tobytes()
    got, want = _both("log_softmax", logits)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


def test_argmax_takes_the_lowest_id_of_equal_ones() -> None:
    logits = _logits(4)
    for row, places in enumerate([(0, 9000), (8191, 8192), (16_390, 16_391), (VOCAB - 1,)]):
        logits[row, list(places)] = 100.0

    got, want = _both("argmax", logits)

    assert got.tolist() == want.tolist() == [0, 8191, 16_390, VOCAB - 1]


def test_top_logprobs_are_those_of_log_softmax() -> None:
    logits = _logits(3)
    logits[0, 5] = np.nan
    logits[1] = np.round(logits[1])
    token_ids = np.array([7, 19_000, 0])

    got, want = _both("top_logprobs", logits, token_ids, 20)
    normal = ops.log_softmax(logits)

    for mine, theirs in zip((got[0], got[3]), (want[0], want[3]), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(got[1], np.take_along_axis(normal, got[0], axis=1))
    np.testing.assert_array_equal(got[2], normal[np.arange(3), token_ids])


def test_a_row_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads() -> None:
    logits = _logits(5)
    use_backend("cpu")
    want = ops.log_softmax(logits)

    for count in (1, 2, 5):
        _native.set_num_threads(count)
        assert ops.log_softmax(logits).tobytes() == want.tobytes()
        assert ops.log_softmax(logits[3:4]).tobytes() == want[3:4].tobytes()


@pytest.mark.parametrize("op", ["apply_logit_bias", "apply_banned_ids", "apply_allowed_ids"])
def test_single_tokens_change_in_place_and_in_a_copy_alike(op: str) -> None:
    logits = _logits(4)
    pairs = (np.array([0, 2, 2]), np.array([5, 0, VOCAB - 1]))
    bias = (np.array([0.1, -3.0, 1e-3]),) if op == "apply_logit_bias" else ()

    got, want = _both(op, logits, *pairs, *bias)
    in_place = logits.copy()
    getattr(ops, op)(in_place, *pairs, *bias, out=in_place)

    assert got.tobytes() == want.tobytes() == in_place.tobytes()
