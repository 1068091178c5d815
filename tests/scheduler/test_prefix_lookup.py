"""PrefixLookup: the usable hit equals a search over all lengths, for any presence of blocks."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.config.cache import CacheGroup
from pyvt.scheduler.block_pool import BlockPool
from pyvt.scheduler.prefix_lookup import PrefixLookup

NUM, SIZE = 7, 4
HASHES = [bytes([i]) * 32 for i in range(NUM)]
GROUPS = st.lists(
    st.one_of(
        st.just(CacheGroup(kind="full")),
        st.builds(CacheGroup, kind=st.just("sliding"), window=st.integers(1, 20)),
        st.just(CacheGroup(kind="state", snapshot_every=4)),
    ),
    min_size=1,
    max_size=4,
)


def is_usable(group: CacheGroup, has: Sequence[bool], num_blocks: int) -> bool:
    if group.kind == "state":
        return num_blocks == 0 or has[num_blocks - 1]
    first = 0
    if group.kind == "sliding":
        first = max(0, num_blocks * SIZE - group.window + 1) // SIZE
    return all(has[first:num_blocks])


@settings(max_examples=300, deadline=None)
@given(groups=GROUPS, data=st.data(), limit=st.integers(0, NUM + 2))
def test_longest_start_equals_brute_force(
    groups: list[CacheGroup], data: st.DataObject, limit: int
) -> None:
    present = [data.draw(st.lists(st.booleans(), min_size=NUM, max_size=NUM)) for _ in groups]
    pool, states = (BlockPool(NUM * len(groups), num_groups=len(groups)) for _ in range(2))
    for g, group in enumerate(groups):
        where = states if group.kind == "state" else pool
        for block_hash, is_there in zip(HASHES, present[g], strict=True):
            if is_there:
                (block_id,) = where.allocate(1) or ()
                where.publish(g, block_hash, block_id)
    lookup = PrefixLookup(groups, SIZE, pool, states)

    found = lookup.longest(HASHES, limit)

    usable = [
        n
        for n in range(min(limit, NUM) + 1)
        if all(is_usable(group, has, n) for group, has in zip(groups, present, strict=True))
    ]
    assert found == max(usable)
    for g, group in enumerate(groups):
        if group.kind != "state":
            assert len(lookup.blocks(g, HASHES, found)) == found
