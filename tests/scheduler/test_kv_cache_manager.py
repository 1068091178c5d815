"""KVCacheManager: tables grow by what tokens need, groups agree, shared blocks are copied."""

import pytest

from pyvt.config.cache import CacheGroup
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager, RequestBlocks

FULL = CacheGroup(kind="full")
SLIDING = CacheGroup(kind="sliding", window=6)
STATE = CacheGroup(kind="state", snapshot_every=8)


def names(num_tokens: int, block_size: int = 4) -> list[bytes]:
    hashes: list[bytes] = []
    BlockHasher(block_size).extend(hashes, range(num_tokens))
    return hashes


def started(manager: KVCacheManager, request_id: str, num_tokens: int) -> RequestBlocks:
    """Return the blocks of a request without a hit, grown to all of its tokens at once."""
    blocks = manager.start(request_id, (), 0, num_tokens)
    assert blocks is not None
    assert manager.grow(blocks, 0, num_tokens) is not None
    return blocks


def test_manager_grow_allocates_only_missing_blocks() -> None:
    manager = KVCacheManager(8, 4)
    blocks = started(manager, "a", 5)

    same = manager.grow(blocks, 5, 8)
    more = manager.grow(blocks, 8, 9)

    assert same == ()
    assert more == ((3,),)
    assert blocks.tables == ([1, 2, 3],)
    manager.check_integrity()


def test_manager_no_room_changes_nothing() -> None:
    manager = KVCacheManager(2, 4)
    started(manager, "a", 4)

    refused = manager.start("b", (), 0, 8)

    assert refused is None
    assert manager.pool.num_free_blocks == 1
    assert "b" not in manager.holders
    manager.check_integrity()


def test_manager_free_gives_all_blocks_back_and_may_repeat() -> None:
    manager = KVCacheManager(2, 4)
    started(manager, "a", 8)

    manager.free("a")
    manager.free("a")

    assert manager.pool.num_free_blocks == 2
    assert manager.usage == 0.0
    manager.check_integrity()


@pytest.mark.parametrize(
    ("group", "num_tokens", "num_blocks"),
    [
        (FULL, 0, 0),
        (FULL, 1, 1),
        (FULL, 4, 1),
        (FULL, 5, 2),
        (SLIDING, 5, 2),
        (SLIDING, 100, 4),  # 5 tokens before a chunk of 4, on 4 blocks at worst
        (STATE, 100, 0),
    ],
)
def test_manager_num_blocks_for_a_group(
    group: CacheGroup, num_tokens: int, num_blocks: int
) -> None:
    manager = KVCacheManager(8, 4, groups=(group,), num_state_slots=2, max_step_tokens=4)

    assert manager.num_blocks_for(num_tokens) == num_blocks


def test_manager_sliding_group_gives_back_what_left_its_window() -> None:
    manager = KVCacheManager(16, 4, groups=(FULL, SLIDING), max_step_tokens=4)
    blocks = manager.start("a", (), 0, 24)
    assert blocks is not None

    most = 0
    for computed in range(0, 24, 4):
        assert manager.grow(blocks, computed, computed + 4) is not None
        most = max(most, sum(block_id != 0 for block_id in blocks.tables[1]))
        manager.check_integrity()

    assert len(blocks.tables[0]) == 6
    assert blocks.tables[1][:3] == [0, 0, 0]
    # The last chunk starts at 20 and sees keys from 15 on: block 3 holds 12 to 15.
    assert blocks.tables[1][3] != 0
    assert most == 3


def test_manager_hit_is_what_all_groups_have() -> None:
    """The sliding group has lost its first blocks, and the full one its fifth."""
    manager = KVCacheManager(32, 4, groups=(FULL, SLIDING), max_step_tokens=24)
    hashes = names(24)
    blocks = started(manager, "a", 24)
    manager.publish(blocks, hashes, 24)

    whole = manager.find_prefix(hashes, 24)
    manager.pool.forget([blocks.tables[1][0], blocks.tables[1][1]])
    windowed = manager.find_prefix(hashes, 24)
    manager.pool.forget([blocks.tables[0][4]])
    shorter = manager.find_prefix(hashes, 24)
    manager.pool.forget([blocks.tables[1][3]])
    none = manager.find_prefix(hashes, 24)

    assert (whole, windowed, shorter, none) == (24, 24, 16, 0)


def test_manager_start_from_a_hit_holds_its_blocks_and_null_blocks_before_the_window() -> None:
    manager = KVCacheManager(32, 4, groups=(FULL, SLIDING), max_step_tokens=24)
    hashes = names(20)
    first = started(manager, "a", 20)
    manager.publish(first, hashes, 20)

    second = manager.start("b", hashes, 16, 20)

    assert second is not None
    assert second.tables[0][:4] == first.tables[0][:4]
    assert second.tables[1] == [0, 0, *first.tables[1][2:4]]
    assert manager.pool.ref_count(first.tables[0][0]) == 2
    manager.check_integrity()


def test_manager_missing_blocks_count_hits_that_nobody_holds() -> None:
    manager = KVCacheManager(8, 4)
    hashes = names(16)
    blocks = started(manager, "a", 16)
    manager.publish(blocks, hashes, 16)

    shared = manager.num_missing_blocks(hashes, 12, 20)
    manager.free("a")
    kept = manager.num_missing_blocks(hashes, 12, 20)

    assert (shared, kept) == (2, 5)


def test_manager_fork_copies_the_partial_block_when_it_is_written() -> None:
    manager = KVCacheManager(8, 4)
    parent = started(manager, "a", 7)

    child = manager.fork(parent, "b", 6)
    shared = [list(table) for table in child.tables]
    new_ids = manager.grow(child, 6, 7)

    assert shared == [[1, 2]]
    assert child.tables == ([1, 3],)
    assert new_ids == ()
    assert manager.take_copies() == ((0, 2, 3),)
    assert manager.take_copies() == ()
    assert (manager.pool.ref_count(1), manager.pool.ref_count(2)) == (2, 1)
    manager.check_integrity()


def test_manager_fork_at_a_block_border_copies_nothing() -> None:
    manager = KVCacheManager(8, 4)
    parent = started(manager, "a", 9)

    child = manager.fork(parent, "b", 8)
    new_ids = manager.grow(child, 8, 9)

    assert new_ids == ((4,),)
    assert manager.take_copies() == ()
    manager.check_integrity()


def test_manager_last_owner_writes_in_place() -> None:
    manager = KVCacheManager(8, 4)
    parent = started(manager, "a", 7)
    child = manager.fork(parent, "b", 6)
    manager.free("a")

    assert manager.grow(child, 6, 7) == ()
    assert child.tables == ([1, 2],)
    assert manager.take_copies() == ()


def test_manager_fork_without_a_free_block_is_refused_whole() -> None:
    manager = KVCacheManager(2, 4)
    parent = started(manager, "a", 7)
    child = manager.fork(parent, "b", 6)

    assert manager.grow(child, 6, 7) is None
    manager.free("b")
    manager.check_integrity()


def test_manager_rollback_keeps_what_is_before_it() -> None:
    manager = KVCacheManager(8, 4)
    blocks = started(manager, "a", 16)

    valid = manager.rollback(blocks, names(16), 6)

    assert valid == 6
    assert blocks.tables == ([1, 2],)
    assert manager.pool.num_free_blocks == 6
    manager.check_integrity()


@pytest.mark.parametrize(("num_tokens", "valid"), [(21, 21), (14, 12), (3, 0)])
def test_manager_rollback_behind_a_window_goes_to_what_can_be_found(
    num_tokens: int, valid: int
) -> None:
    """The window has moved to tokens from 15 on; block 1 and 2 can be found, block 0 cannot."""
    manager = KVCacheManager(16, 4, groups=(FULL, SLIDING), max_step_tokens=4)
    hashes = names(24)
    blocks = manager.start("a", hashes, 0, 24)
    assert blocks is not None
    for computed in range(0, 24, 4):
        manager.grow(blocks, computed, computed + 4)
        manager.publish(blocks, hashes, computed + 4)
    block_0 = manager.pool.find(1, hashes[0])
    assert block_0 is not None
    manager.pool.forget([block_0])

    assert manager.rollback(blocks, hashes, num_tokens) == valid
    manager.check_integrity()


def test_manager_state_slots_bound_the_requests() -> None:
    manager = KVCacheManager(16, 4, groups=(FULL, STATE), num_state_slots=1)
    started(manager, "a", 4)

    assert manager.start("b", (), 0, 4) is None
    manager.free("a")
    assert manager.start("b", (), 0, 4) is not None


def test_manager_integrity_finds_a_block_in_two_tables() -> None:
    manager = KVCacheManager(4, 4)
    first, second = started(manager, "a", 4), started(manager, "b", 4)
    second.tables[0][0] = first.tables[0][0]

    with pytest.raises(AssertionError, match="references"):
        manager.check_integrity()
