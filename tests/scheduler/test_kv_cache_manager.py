"""KVCacheManager: tables grow by what tokens need, several groups draw from one pool."""

import pytest

from pyvt.scheduler.kv_cache_manager import KVCacheManager


def test_manager_allocates_only_missing_blocks() -> None:
    manager = KVCacheManager(num_blocks=8, block_size=4)

    first = manager.allocate("a", 5)
    same = manager.allocate("a", 8)
    more = manager.allocate("a", 9)

    assert first == ((0, 1),)
    assert same == ((),)
    assert more == ((2,),)
    assert manager.block_ids("a") == ((0, 1, 2),)
    manager.check_integrity()


def test_manager_no_room_changes_nothing() -> None:
    manager = KVCacheManager(num_blocks=2, block_size=4)
    manager.allocate("a", 4)

    refused = manager.allocate("b", 8)

    assert refused is None
    assert manager.pool.num_free_blocks == 1
    manager.check_integrity()


def test_manager_free_gives_all_blocks_back_and_may_repeat() -> None:
    manager = KVCacheManager(num_blocks=2, block_size=4)
    manager.allocate("a", 8)

    manager.free("a")
    manager.free("a")

    assert manager.pool.num_free_blocks == 2
    assert manager.usage == 0.0
    manager.check_integrity()


def test_manager_two_groups_have_own_tables_of_equal_length() -> None:
    manager = KVCacheManager(num_blocks=8, block_size=4, num_groups=2)

    ids = manager.allocate("a", 6)

    assert ids == ((0, 1), (2, 3))
    assert manager.num_blocks_for(6) == 4
    manager.check_integrity()


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_manager_num_blocks_for_rounds_up(num_tokens: int, num_blocks: int) -> None:
    assert KVCacheManager(num_blocks=8, block_size=4).num_blocks_for(num_tokens) == num_blocks


def test_manager_integrity_finds_a_block_in_two_tables() -> None:
    manager = KVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("a", 4)
    manager.allocate("b", 4)
    manager._tables["b"][0][0] = 0

    with pytest.raises(AssertionError, match="references"):
        manager.check_integrity()
