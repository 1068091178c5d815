"""BlockPool: allocation, shared blocks, blocks that are kept for reuse, and the order of both."""

import pytest

from pyvt.scheduler.block_pool import NULL_BLOCK, BlockPool

HASHES = [bytes([i]) * 32 for i in range(8)]


def kept_pool(num_blocks: int, num_kept: int) -> BlockPool:
    """Return a pool whose first blocks are kept under ``HASHES``, released in rising order."""
    pool = BlockPool(num_blocks)
    ids = pool.allocate(num_kept)
    assert ids is not None
    for block_hash, block_id in zip(HASHES, ids, strict=False):
        pool.publish(0, block_hash, block_id)
    pool.release(ids)
    return pool


def test_block_pool_allocates_until_empty_then_none() -> None:
    pool = BlockPool(3)

    first = pool.allocate(2)
    too_many = pool.allocate(2)
    last = pool.allocate(1)

    assert first == [1, 2]
    assert too_many is None
    assert last == [3]
    assert pool.num_free_blocks == 0
    pool.check_integrity()


def test_block_pool_zero_blocks_is_an_empty_list() -> None:
    assert BlockPool(0).allocate(0) == []


def test_block_pool_null_block_is_never_given_and_never_counted() -> None:
    pool = BlockPool(2)
    ids = pool.allocate(2)
    assert ids is not None

    pool.retain([NULL_BLOCK, ids[0]])
    pool.release([ids[0], NULL_BLOCK])

    assert NULL_BLOCK not in ids
    assert pool.ref_count(NULL_BLOCK) == 0
    pool.check_integrity()


def test_block_pool_shared_block_is_freed_by_the_last_release() -> None:
    pool = BlockPool(1)
    ids = pool.allocate(1)
    assert ids is not None
    pool.retain(ids)

    pool.release(ids)
    held = pool.num_free_blocks
    pool.release(ids)

    assert held == 0
    assert pool.num_free_blocks == 1
    pool.check_integrity()


def test_block_pool_reuses_the_free_block_that_was_freed_last() -> None:
    pool = BlockPool(4)
    pool.allocate(3)

    pool.release([3])
    pool.release([1])

    assert pool.allocate(3) == [1, 3, 4]


def test_block_pool_free_blocks_go_before_kept_ones() -> None:
    pool = kept_pool(4, 2)

    assert pool.allocate(2) == [3, 4]
    assert pool.num_kept_blocks == 2
    assert pool.num_evictions == 0


def test_block_pool_evicts_the_kept_block_that_was_released_first() -> None:
    pool = kept_pool(3, 3)
    pool.retain([1])
    pool.release([1])  # used again, so the last to go

    taken = pool.allocate(2)

    assert taken == [2, 3]
    assert [pool.find(0, block_hash) for block_hash in HASHES[:3]] == [1, None, None]
    assert pool.num_evictions == 2
    pool.check_integrity()


def test_block_pool_kept_block_is_found_and_held_again() -> None:
    pool = kept_pool(2, 1)

    found = pool.find(0, HASHES[0])
    assert found == 1
    pool.retain([found])

    assert pool.ref_count(1) == 1
    assert pool.num_free_blocks == 1
    pool.check_integrity()


def test_block_pool_held_block_with_a_hash_is_never_evicted() -> None:
    pool = kept_pool(2, 1)
    pool.retain([1])

    assert pool.allocate(2) is None
    assert pool.allocate(1) == [2]


def test_block_pool_first_of_two_equal_blocks_keeps_the_name() -> None:
    pool = BlockPool(2)
    pool.allocate(2)

    first = pool.publish(0, HASHES[0], 1)
    second = pool.publish(0, HASHES[0], 2)
    pool.release([1, 2])

    assert (first, second) == (True, False)
    assert pool.num_kept_blocks == 1
    assert pool.hash_of(2) is None
    pool.check_integrity()


def test_block_pool_groups_have_names_of_their_own() -> None:
    pool = BlockPool(2, num_groups=2)
    pool.allocate(2)
    pool.publish(0, HASHES[0], 1)
    pool.publish(1, HASHES[0], 2)

    assert (pool.find(0, HASHES[0]), pool.find(1, HASHES[0])) == (1, 2)


def test_block_pool_forget_and_reset_make_blocks_free() -> None:
    pool = kept_pool(4, 3)
    pool.retain([3])

    pool.forget([1])
    num_known = pool.reset()

    assert num_known == 2
    assert [pool.find(0, block_hash) for block_hash in HASHES[:3]] == [None] * 3
    assert pool.num_kept_blocks == 0
    assert pool.num_free_blocks == 3
    pool.check_integrity()


def test_block_pool_pinned_block_outlives_its_request() -> None:
    pool = kept_pool(2, 1)
    pool.pin([1])

    assert pool.allocate(2) is None
    pool.unpin([1])

    assert pool.num_pinned_blocks == 0
    assert pool.allocate(2) == [2, 1]
    pool.check_integrity()


def test_block_pool_double_release_is_an_assertion() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.release([1])

    with pytest.raises(AssertionError, match="released twice"):
        pool.release([1])


def test_block_pool_double_unpin_is_an_assertion() -> None:
    pool = kept_pool(1, 1)
    pool.pin([1])
    pool.unpin([1])

    with pytest.raises(AssertionError, match="unpinned twice"):
        pool.unpin([1])


def test_block_pool_retain_of_a_free_block_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="cannot be shared"):
        BlockPool(1).retain([1])


def test_block_pool_integrity_finds_a_held_block_in_the_free_list() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool._free.append(1)

    with pytest.raises(AssertionError, match="differ"):
        pool.check_integrity()


def test_block_pool_integrity_finds_a_name_that_leads_nowhere() -> None:
    pool = kept_pool(2, 1)
    del pool._by_hash[0][HASHES[0]]

    with pytest.raises(AssertionError, match="hashes and blocks differ"):
        pool.check_integrity()
