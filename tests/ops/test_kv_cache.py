"""Laws of the KV cache that no single case can say."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.testing.composites import COMPOSITES
from pyvt.testing.op_cases import ALL_CASES

SHAPE = (5, 4, 2, 3)  # blocks, block size, KV heads, head size
Array = np.ndarray[Any, Any]


def ids(*values: int) -> Array:
    return np.array(values, np.int64)


def caches(seed: int = 0) -> Array:
    """Return key and value cache as one array, ``[2, B, S, Nk, D]``."""
    return np.random.default_rng(seed).standard_normal((2, *SHAPE), np.float32)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(slots=st.lists(st.integers(0, 19), unique=True), seed=st.integers(0, 99))
def test_reshape_and_cache_writes_its_slots_and_no_other(slots: list[int], seed: int) -> None:
    cache = caches(seed)
    k, v = np.random.default_rng(seed + 1).standard_normal((2, len(slots), *SHAPE[2:]), np.float32)
    want = cache.reshape(2, 20, *SHAPE[2:]).copy()
    want[0, slots], want[1, slots] = k, v

    ops.reshape_and_cache(k, v, cache[0], cache[1], ids(*slots))

    np.testing.assert_array_equal(cache.reshape(want.shape), want)


def test_reshape_and_cache_writes_through_a_view() -> None:
    """A layer's caches may be strided views of one array for keys and values of all layers."""
    whole = np.zeros((SHAPE[0], 3, 2, *SHAPE[1:]), np.float32)
    k, v = np.full((1, 2, 3), 1.0, np.float32), np.full((1, 2, 3), 2.0, np.float32)

    ops.reshape_and_cache(k, v, whole[:, 1, 0], whole[:, 1, 1], ids(6))

    assert (whole[1, 1, 0, 2] == 1.0).all()
    assert (whole[1, 1, 1, 2] == 2.0).all()
    assert np.count_nonzero(whole) == 2 * 6


def test_f16_cache_keeps_what_is_beyond_its_range_as_its_largest_number() -> None:
    values = [65519.0, 65520.0, -1e30, np.inf, -np.inf, np.nan]
    k = np.array(values, np.float32).reshape(1, 2, 3)
    cache = np.zeros((2, *SHAPE), np.float16)

    ops.reshape_and_cache(k, k, cache[0], cache[1], ids(5))

    want = [65504.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan]
    np.testing.assert_array_equal(cache[:, 1, 1].reshape(2, -1), [want, want])


@settings(derandomize=True, deadline=None, max_examples=30)
@given(order=st.permutations(range(5)), num=st.integers(0, 5))
def test_scatter_of_gathered_blocks_restores_the_cache(order: list[int], num: int) -> None:
    cache, block_ids = caches()[0], ids(*order[:num])
    other = np.zeros_like(cache)

    ops.scatter_blocks(ops.gather_blocks(cache, block_ids), other, block_ids)

    np.testing.assert_array_equal(other[block_ids], cache[block_ids])
    assert not other[ids(*order[num:])].any()


def test_gather_blocks_returns_a_copy() -> None:
    cache = caches()[0]

    ops.gather_blocks(cache, ids(1))[...] = 0

    assert cache[1].all()


def test_copy_blocks_leaves_the_sources() -> None:
    cache = caches()
    want = cache.copy()
    want[:, 0] = want[:, 4]

    ops.copy_blocks(cache[0], cache[1], ids(4, 0)[None])

    np.testing.assert_array_equal(cache, want)


@pytest.mark.parametrize("slot", [-2, 20])
def test_reshape_and_cache_with_a_slot_outside_is_refused(slot: int) -> None:
    cache, new = caches(), np.zeros((2, 2, 3), np.float32)

    with pytest.raises(
        ShapeError, match=rf"slot_mapping: expected values in \[-1, 20\), got {slot}"
    ):
        ops.reshape_and_cache(new, new, cache[0], cache[1], ids(3, slot))


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        pytest.param([[0, 5]], r"values in \[0, 5\), got 5", id="outside"),
        pytest.param([[-1, 0]], r"values in \[0, 5\), got -1", id="negative"),
        pytest.param([[0, 2], [1, 2]], r"every destination once, got \[2\]", id="repeated"),
        pytest.param([[0, 1], [1, 2]], r"source and destination, got \[1\]", id="chain"),
    ],
)
def test_copy_blocks_with_bad_pairs_is_refused(pairs: list[list[int]], text: str) -> None:
    cache = caches()
    want = cache.copy()

    with pytest.raises(ShapeError, match=rf"\[copy_blocks\] src_dst: expected .*{text}"):
        ops.copy_blocks(cache[0], cache[1], np.array(pairs, np.int64))

    np.testing.assert_array_equal(cache, want)


def test_scatter_blocks_with_a_repeated_block_is_refused() -> None:
    cache = caches()[0]

    with pytest.raises(ShapeError, match=r"block_ids: expected every destination once, got \[3\]"):
        ops.scatter_blocks(cache[:2].copy(), cache, ids(3, 3))


@pytest.mark.parametrize("block_id", [-1, 5])
def test_gather_blocks_with_a_block_outside_is_refused(block_id: int) -> None:
    with pytest.raises(ShapeError, match=r"\[gather_blocks\] block_ids: expected values in"):
        ops.gather_blocks(caches()[0], ids(0, block_id))


def test_reshape_and_cache_with_another_number_of_slots_is_refused() -> None:
    cache, new = caches(), np.zeros((2, 2, 3), np.float32)

    with pytest.raises(ShapeError, match=r"slot_mapping: expected T=2, got 3"):
        ops.reshape_and_cache(new, new, cache[0], cache[1], ids(0, 1, 2))


def test_reshape_and_cache_into_a_read_only_cache_is_refused() -> None:
    cache, new = caches(), np.zeros((1, 2, 3), np.float32)
    cache.flags.writeable = False

    with pytest.raises(ShapeError, match=r"k_cache: expected a writeable array"):
        ops.reshape_and_cache(new, new, cache[0], cache[1], ids(0))


def test_key_cache_that_is_the_value_cache_is_refused() -> None:
    cache = np.zeros((4, 2, 1, 2), np.float32)
    new = np.ones((1, 1, 2), np.float32)

    with pytest.raises(ShapeError, match="v_cache: expected memory apart from k_cache"):
        ops.reshape_and_cache(new, new * 2, cache, cache, np.array([0]))


def test_caches_may_lie_block_by_block_in_one_array() -> None:
    both = np.zeros((4, 2, 2, 1, 2), np.float32)
    new = np.ones((1, 1, 2), np.float32)

    ops.reshape_and_cache(new, new * 2, both[:, 0], both[:, 1], np.array([3]))

    assert both[1, :, 1, 0].tolist() == [[1, 1], [2, 2]]
    assert both.sum() == 6


def test_blocks_that_overlap_their_cache_are_refused() -> None:
    cache = caches()[0]

    with pytest.raises(ShapeError, match=r"out: expected memory apart from cache"):
        ops.gather_blocks(cache, ids(1), out=cache[:1])
    with pytest.raises(ShapeError, match=r"cache: expected memory apart from blocks"):
        ops.scatter_blocks(cache[:1], cache, ids(1))


def test_reshape_and_cache_rounds_f64_once() -> None:
    """Through f32 the value would round to 1, and 1 is not the nearest bf16."""
    cache = np.zeros((2, 1, 1, 1, 1), ml_dtypes.bfloat16)
    new = np.full((1, 1, 1), 1 + 2**-8 + 2**-40)

    ops.reshape_and_cache(new, -new, cache[0], cache[1], ids(0))

    assert cache.ravel().tolist() == [1 + 2**-7, -1 - 2**-7]


def test_scatter_blocks_of_another_dtype_is_refused() -> None:
    cache = caches()[0]

    with pytest.raises(DTypeError, match=r"blocks: expected float32 as cache, got float64"):
        ops.scatter_blocks(cache[:1].astype(np.float64), cache, ids(3))


def rotating(dtype: str = "f32", **changes: Any) -> dict[str, Any]:
    """The arguments of a call of ``rotate_and_cache`` with four query heads and two of KV."""
    (case,) = (c for c in ALL_CASES if c.name == "rotate_and_cache-partial")
    return case.inputs(dtype) | changes


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_rotate_and_cache_has_the_bits_of_its_parts(dtype: str) -> None:
    a, b = rotating(dtype), rotating(dtype)

    ops.rotate_and_cache(**a)

    want = COMPOSITES["rotate_and_cache"](b)
    for name, array in want.items():
        assert a[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"k_weight": None}, "k_weight: expected both weights or none"),
        ({"q_weight": np.ones(3, np.float32)}, "q_weight: expected D=16, got 3"),
        ({"positions": ids(0, 3, 1)}, r"positions: expected values in \[0, 3\), got 3"),
        ({"slot_mapping": ids(0, 20, 1)}, r"slot_mapping: expected values in \[-1, 20\), got 20"),
        ({"v": np.ones((3, 1, 16), np.float32)}, "v: expected Nk=2, got 1"),
        ({"eps": -1.0}, "eps: expected a finite number of at least 0"),
    ],
)
def test_rotate_and_cache_with_a_bad_argument_is_refused_and_writes_nothing(
    changes: dict[str, Any], text: str
) -> None:
    a, before = rotating(**changes), rotating()

    with pytest.raises(ShapeError, match=rf"\[rotate_and_cache\] {text}"):
        ops.rotate_and_cache(**a)

    for name in ("q", "k", "k_cache", "v_cache"):
        np.testing.assert_array_equal(a[name], before[name])
