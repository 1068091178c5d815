"""Rotary embedding beyond what a case can say."""

import re
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError

INV_FREQ = 1e4 ** -(np.arange(0, 8, 2) / 8)
# Of 131071 * 1e4 ** -0.25 = 13107.1 rad, computed with 60 digits.
FAR_COS, FAR_SIN = 0.93034298984439149754, 0.36669049789624827266


def heads(num_tokens: int = 3, dtype: Any = np.float64) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((num_tokens, 4, 10)).astype(dtype),
        rng.standard_normal((num_tokens, 2, 10)).astype(dtype),
    )


def test_table_of_position_zero_is_ones_and_zeros() -> None:
    table = ops.rope_cos_sin(INV_FREQ, 1)

    assert table.dtype == np.float32
    assert table.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]


def test_table_far_out_has_the_right_angle() -> None:
    """An angle taken in f32 would be off by 5e-4 here."""
    table = ops.rope_cos_sin(INV_FREQ, 131072, dtype="f64")

    np.testing.assert_allclose(table[131071, 1], FAR_COS, rtol=0, atol=1e-11)
    np.testing.assert_allclose(table[131071, 5], FAR_SIN, rtol=0, atol=1e-11)


def test_table_may_grow_by_its_rows() -> None:
    whole = ops.rope_cos_sin(INV_FREQ, 9, 1.5)

    ends = ops.rope_cos_sin(INV_FREQ, 4, 1.5, first_position=5)

    np.testing.assert_array_equal(whole[5:], ends)


def test_table_rounds_once() -> None:
    exact = ops.rope_cos_sin(INV_FREQ, 50, 1.25, dtype="f64")

    for name in ("f32", "f16", "bf16"):
        got = ops.rope_cos_sin(INV_FREQ, 50, 1.25, dtype=name)
        np.testing.assert_array_equal(got, ops.cast(exact, name))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"num_positions": -1},
            "num_positions: expected an integer of at least 0 below 2^63, got -1",
        ),
        (
            {"first_position": -2},
            "first_position: expected an integer of at least 0 below 2^63, got -2",
        ),
        ({"inv_freq": INV_FREQ[None]}, "inv_freq: expected dims [_], got shape (1, 4)"),
    ],
)
def test_table_of_bad_arguments_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"[rope_cos_sin] {text}")):
        ops.rope_cos_sin(**{"inv_freq": INV_FREQ, "num_positions": 2} | change)


def test_table_of_f32_frequencies_is_refused() -> None:
    with pytest.raises(DTypeError, match="inv_freq: expected f64, got float32"):
        ops.rope_cos_sin(INV_FREQ.astype(np.float32), 2)


def test_rotation_pairs_the_halves_of_the_first_r_dims() -> None:
    quarter = np.array([[0.0, 0.0, 1.0, 1.0]])
    q = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]])
    k = 10 * q

    assert ops.rotary_embedding(q, k, np.array([0]), quarter) is None
    assert q.tolist() == [[[-3.0, -4.0, 1.0, 2.0, 5.0]]]
    assert k.tolist() == [[[-30.0, -40.0, 10.0, 20.0, 50.0]]]


def test_rotation_leaves_the_tail_of_the_head_bit_for_bit() -> None:
    q, k = heads(dtype=np.float32)
    q[..., 8:], k[..., 8:] = np.nan, np.inf
    q_tail, k_tail = q[..., 8:].tobytes(), k[..., 8:].tobytes()

    ops.rotary_embedding(q, k, np.array([5, 6, 7]), ops.rope_cos_sin(INV_FREQ, 8))

    assert q[..., 8:].tobytes() == q_tail
    assert k[..., 8:].tobytes() == k_tail
    assert np.isfinite(q[..., :8]).all()


def test_rotation_at_position_zero_changes_nothing() -> None:
    q, k = heads(dtype=np.float16)
    before = q.tobytes(), k.tobytes()

    ops.rotary_embedding(q, k, np.zeros(3, np.int64), ops.rope_cos_sin(INV_FREQ, 1))

    assert (q.tobytes(), k.tobytes()) == before


def test_rotation_keeps_lengths_and_makes_scores_relative() -> None:
    """The score of a query and a key depends on the distance of their positions alone."""
    table = ops.rope_cos_sin(INV_FREQ, 140000, dtype="f64")
    scores = []
    for start in (0, 8191, 131071):
        q, k = heads(1)
        length = np.linalg.norm(q)
        ops.rotary_embedding(q, k.copy(), np.array([start + 7]), table)
        ops.rotary_embedding(q.copy(), k, np.array([start]), table)
        np.testing.assert_allclose(np.linalg.norm(q), length, rtol=1e-12)
        scores.append(q[0] @ k[0].T)

    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(scores[2], scores[0], rtol=0, atol=1e-9)


def test_rotation_of_one_token_does_not_depend_on_the_others() -> None:
    q, k = heads()
    positions, table = np.array([7, 0, 3]), ops.rope_cos_sin(INV_FREQ, 8)
    alone_q, alone_k = q[2:].copy(), k[2:].copy()

    ops.rotary_embedding(q, k, positions, table)
    ops.rotary_embedding(alone_q, alone_k, positions[2:], table)

    np.testing.assert_array_equal(q[2:], alone_q)
    np.testing.assert_array_equal(k[2:], alone_k)


@pytest.mark.parametrize("bad", [8, -1])
def test_position_outside_the_table_is_refused(bad: int) -> None:
    q, k = heads()
    text = f"[rotary_embedding] positions: expected values in [0, 8), got {bad}"

    with pytest.raises(ShapeError, match=re.escape(text)):
        ops.rotary_embedding(q, k, np.array([0, bad, 1]), ops.rope_cos_sin(INV_FREQ, 8))


@pytest.mark.parametrize(("num_rotated", "got"), [(3, 3), (12, 12)])
def test_table_that_does_not_fit_the_head_is_refused(num_rotated: int, got: int) -> None:
    q, k = heads()
    text = f"[rotary_embedding] cos_sin: expected an even R of at most D=10, got {got}"

    with pytest.raises(ShapeError, match=re.escape(text)):
        ops.rotary_embedding(q, k, np.zeros(3, np.int64), np.zeros((1, num_rotated)))


def test_rotation_of_arguments_that_disagree_is_refused() -> None:
    q, k = heads()
    positions, table = np.zeros(3, np.int64), np.zeros((1, 8))

    with pytest.raises(DTypeError, match="k: expected float64 as q, got float32"):
        ops.rotary_embedding(q, k.astype(np.float32), positions, table)
    with pytest.raises(ShapeError, match="k: expected D=10, got 9"):
        ops.rotary_embedding(q, k[..., :9], positions, table)
    with pytest.raises(ShapeError, match="k: expected T=3, got 2"):
        ops.rotary_embedding(q, k[:2], positions, table)
    with pytest.raises(DTypeError, match="positions: expected i64, got int32"):
        ops.rotary_embedding(q, k, positions.astype(np.int32), table)


def test_rotation_of_a_query_that_is_its_key_is_refused() -> None:
    """It would be turned twice."""
    q, _ = heads()
    table = ops.rope_cos_sin(np.array([1.0, 0.5]), 8, dtype="f64")

    with pytest.raises(ShapeError, match=r"\[rotary_embedding\] k: expected memory apart from q"):
        ops.rotary_embedding(q, q[:, :1], np.array([1, 2, 3]), table)


def test_table_is_made_in_tiles_of_the_same_values() -> None:
    inv_freq = np.array([1.0, 0.1])
    positions = np.arange(9000.0)[:, None]

    table = ops.rope_cos_sin(inv_freq, 9000, 0.5, dtype="f64")

    angles = positions * inv_freq
    want = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * 0.5
    np.testing.assert_array_equal(table, want)


def test_rotation_of_a_read_only_key_is_refused_before_the_query_changes() -> None:
    q, k = heads()
    before = q.copy()
    k.flags.writeable = False

    with pytest.raises(ShapeError, match=r"\[rotary_embedding\] k: expected a writeable array"):
        ops.rotary_embedding(q, k, np.ones(3, np.int64), ops.rope_cos_sin(INV_FREQ, 2))

    np.testing.assert_array_equal(q, before)
