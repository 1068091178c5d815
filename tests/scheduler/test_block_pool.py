"""BlockPool: allocation, shared blocks, and the order of reuse."""

import pytest

from pyvt.scheduler.block_pool import BlockPool


def test_block_pool_allocates_until_empty_then_none() -> None:
    pool = BlockPool(3)

    first = pool.allocate(2)
    too_many = pool.allocate(2)
    last = pool.allocate(1)

    assert first == (0, 1)
    assert too_many is None
    assert last == (2,)
    assert pool.num_free_blocks == 0
    pool.check_integrity()


def test_block_pool_zero_blocks_is_an_empty_tuple() -> None:
    assert BlockPool(0).allocate(0) == ()


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


def test_block_pool_reuses_the_block_freed_last() -> None:
    pool = BlockPool(4)
    pool.allocate(3)

    pool.release([2])
    pool.release([0])

    assert pool.allocate(3) == (0, 2, 3)


def test_block_pool_double_release_is_an_assertion() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.release([0])

    with pytest.raises(AssertionError, match="released twice"):
        pool.release([0])


def test_block_pool_retain_of_a_free_block_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="cannot be shared"):
        BlockPool(1).retain([0])


def test_block_pool_integrity_finds_a_held_block_in_the_free_list() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool._free.append(0)

    with pytest.raises(AssertionError, match="differ"):
        pool.check_integrity()
