"""PrefixLookup: the longest start of a prompt that every cache group can serve.

A start of n blocks can be used where

1. every full group has all n blocks;
2. every sliding group has the blocks that the first query after it sees;
3. every state group has a snapshot at exactly its end.

Groups are asked in turn and each may only shorten the start, until all agree.
"""

from collections.abc import Sequence

from pyvt.config.cache import CacheGroup
from pyvt.mathutil import cdiv
from pyvt.scheduler.block_pool import NULL_BLOCK, BlockPool


class PrefixLookup:
    """Finds published blocks and snapshots by their names; changes nothing."""

    __slots__ = ("_block_size", "_groups", "_pool", "_states")

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        block_size: int,
        pool: BlockPool,
        states: BlockPool | None,
    ) -> None:
        self._groups = groups
        self._block_size = block_size
        self._pool = pool
        self._states = states

    def longest(self, hashes: Sequence[bytes], max_blocks: int, *, with_states: bool = True) -> int:
        """Return the blocks of the longest start that can be used, at most ``max_blocks``.

        Without states it is the longest whose KV is there.
        """
        found = min(len(hashes), max_blocks)
        before = -1
        while found and found != before:
            before = found
            for g, group in enumerate(self._groups):
                if group.kind == "full":
                    found = self._longest_full(g, hashes, found)
                elif group.kind == "sliding":
                    found = self._longest_sliding(g, hashes, found)
                elif with_states:
                    found = self._longest_state(g, hashes, found)
        return found

    def blocks(self, group: int, hashes: Sequence[bytes], num_blocks: int) -> list[int]:
        """Return the table of a start that ``longest`` found; null blocks before a window."""
        first = num_blocks - self._num_seen(self._groups[group], num_blocks)
        found = [self._pool.find(group, hashes[i]) for i in range(first, num_blocks)]
        assert None not in found, "a start that can be used has all of its blocks"
        return [NULL_BLOCK] * first + [block_id for block_id in found if block_id is not None]

    def _num_seen(self, group: CacheGroup, num_blocks: int) -> int:
        """Return how many of the last blocks a query after them sees."""
        if group.kind == "full":
            return num_blocks
        return min(num_blocks, cdiv(group.window - 1, self._block_size))

    def _longest_full(self, group: int, hashes: Sequence[bytes], limit: int) -> int:
        find = self._pool.find
        for i in range(limit):
            if find(group, hashes[i]) is None:
                return i
        return limit

    def _longest_sliding(self, group: int, hashes: Sequence[bytes], limit: int) -> int:
        """Walk back from the end; the first run that is as long as the window ends the start."""
        end = limit
        for i in range(limit - 1, -1, -1):
            if end - i > self._num_seen(self._groups[group], end):
                return end
            if self._pool.find(group, hashes[i]) is None:
                end = i
        return end

    def _longest_state(self, group: int, hashes: Sequence[bytes], limit: int) -> int:
        assert self._states is not None, "a state group has slots"
        for i in range(limit, 0, -1):
            if self._states.find(group, hashes[i - 1]) is not None:
                return i
        return 0
