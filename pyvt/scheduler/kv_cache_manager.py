"""KVCacheManager: the block tables of each request, one for each cache group.

Groups that keep KV of tokens draw from one pool; the state group has slots of its own, which
``StateManager`` deals. Groups are made to agree here: a request gets blocks of all groups or of
none, and a prefix hit is a start that every group can serve.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyvt.config.cache import FULL_GROUP, CacheGroup, blocks_of_request
from pyvt.mathutil import cdiv, round_up
from pyvt.messages import BlockCopy, BlockIds
from pyvt.scheduler.block_pool import NULL_BLOCK, BlockPool
from pyvt.scheduler.prefix_lookup import PrefixLookup
from pyvt.scheduler.state_manager import RequestState, StateManager
from pyvt.scheduler.state_pool import StatePool


@dataclass(slots=True, eq=False)
class RequestBlocks:
    """What one request holds.

    Attributes:
        tables: for each group the blocks of its tokens in order; that of a state group is empty.
        num_published: blocks at the start of the request that were published.
        num_dropped: for each group the blocks at its start that left the window.
        is_shared: whether its last, partial block may have another owner.
        state: its slots, None without a state group.
    """

    tables: tuple[list[int], ...]
    num_published: int = 0
    num_dropped: list[int] = field(default_factory=list)
    is_shared: bool = False
    state: RequestState | None = None


@dataclass(slots=True)
class PrefixCacheStats:
    """Sums since the start, in tokens where not said otherwise.

    Attributes:
        num_queries: requests that looked for a prefix.
        num_query_tokens: tokens of their prompts.
        num_hit_tokens: tokens of them that were found.
        num_resets: how often the cache was emptied.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_resets: int = 0


class KVCacheManager:
    """Gives requests the blocks that their tokens need and takes them back.

    Attributes:
        pool: blocks of the groups that keep KV of tokens.
        states: who deals the slots of the state group, None without one.
        copies: copies that the worker must make before the next step, in order.
    """

    __slots__ = (
        "_is_simple",
        "_state_group",
        "_token_groups",
        "block_size",
        "copies",
        "groups",
        "holders",
        "lookup",
        "max_step_tokens",
        "pool",
        "prefix_stats",
        "states",
    )

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Sequence[CacheGroup] = (FULL_GROUP,),
        num_state_slots: int = 0,
        max_step_tokens: int = 1 << 30,
    ) -> None:
        """``max_step_tokens`` is the most that a step computes for one request."""
        self.groups = tuple(groups)
        self.block_size = block_size
        self.max_step_tokens = max_step_tokens
        self.pool = BlockPool(num_blocks, num_groups=len(self.groups))
        self._token_groups = tuple(
            g for g, group in enumerate(self.groups) if group.kind != "state"
        )
        self._state_group = next(
            (g for g, group in enumerate(self.groups) if group.kind == "state"), None
        )
        assert len(self.groups) - len(self._token_groups) <= 1, "all states are one group"
        self.states = self._make_states(num_state_slots)
        pool = None if self.states is None else self.states.pool
        self.lookup = PrefixLookup(self.groups, block_size, self.pool, pool)
        self.prefix_stats = PrefixCacheStats()
        self.copies: list[BlockCopy] = []
        self.holders: dict[str, RequestBlocks] = {}
        self._is_simple = all(group.kind == "full" for group in self.groups)

    @property
    def num_groups(self) -> int:
        """Cache groups of the model."""
        return len(self.groups)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        return 1.0 - self.pool.num_free_blocks / self.pool.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks that a request of that many tokens holds, over all groups."""
        return blocks_of_request(self.groups, num_tokens, self.block_size, self.max_step_tokens)

    def find_prefix(self, hashes: Sequence[bytes], max_tokens: int) -> int:
        """Return the longest start, at most ``max_tokens``, that every group has."""
        return self.lookup.longest(hashes, max_tokens // self.block_size) * self.block_size

    def num_missing_blocks(self, hashes: Sequence[bytes], num_hit: int, num_tokens: int) -> int:
        """Return the blocks that a start with this hit takes from the free ones.

        Blocks of the hit that nobody holds count: they are free until they are held.
        """
        num_kept = sum(
            self.pool.ref_count(block_id) == 0
            for g in self._token_groups
            for block_id in self.lookup.blocks(g, hashes, num_hit // self.block_size)
            if block_id != NULL_BLOCK
        )
        need = self.num_blocks_for(num_tokens)
        return max(0, need - self._num_hit_blocks(num_hit, num_tokens)) + num_kept

    def start(
        self, request_id: str, hashes: Sequence[bytes], num_hit: int, num_tokens: int
    ) -> RequestBlocks | None:
        """Give a request its first blocks: those of the hit, and new ones for full groups.

        A full group gets blocks for all of ``num_tokens`` at once, so that a prefill never stops
        half-way for want of them; other groups grow as steps are granted.

        Returns:
            None where blocks or slots are too few; then nothing has changed.
        """
        if self.states is not None and not self.states.has_room:
            return None
        blocks = RequestBlocks(
            tables=tuple([] for _ in self.groups), num_dropped=[0] * self.num_groups
        )
        num_hit_blocks = num_hit // self.block_size
        for g in self._token_groups:
            found = self.lookup.blocks(g, hashes, num_hit_blocks)
            self.pool.retain(found)
            blocks.tables[g].extend(found)
            blocks.num_dropped[g] = found.count(NULL_BLOCK)
        blocks.num_published = num_hit_blocks
        if self._extend(blocks, num_tokens, full_only=True) is None:
            for table in blocks.tables:
                self.pool.release(reversed(table))
            return None
        if self.states is not None:
            # Where the KV of a prompt's start goes on and the state does not.
            branch = self.lookup.longest(hashes, num_tokens // self.block_size, with_states=False)
            blocks.state = self.states.start(
                self._name_of(hashes, num_hit), num_hit, branch * self.block_size
            )
            assert blocks.state is not None, "slots were counted before"
        self.holders[request_id] = blocks
        return blocks

    def cover(self, blocks: RequestBlocks, num_tokens: int) -> bool:
        """Give a request blocks for tokens that will be loaded; False where they are too few.

        A sliding group gets those that the first query after them sees, a state group a slot for
        the state behind them.
        """
        num_blocks = num_tokens // self.block_size
        for g, group in enumerate(self.groups):
            if group.kind == "sliding":
                first = max(0, num_blocks - cdiv(group.window - 1, self.block_size))
                blocks.tables[g].extend([NULL_BLOCK] * (first - len(blocks.tables[g])))
                self._drop_before(blocks, g, first)
        if self._extend(blocks, num_tokens) is None:
            return False
        if self.states is not None and blocks.state is not None:
            self.states.expect(blocks.state, num_tokens)
        return True

    def loading_tables(self, blocks: RequestBlocks) -> BlockIds:
        """Return the tables of a request; that of a state group has the slot that a load fills.

        It stands where the block that ends the loaded tokens stands in the others.
        """
        tables = [tuple(table) for table in blocks.tables]
        if self._state_group is not None and blocks.state is not None and blocks.state.num_loaded:
            num_before = blocks.state.num_loaded // self.block_size - 1
            tables[self._state_group] = (*(NULL_BLOCK,) * num_before, blocks.state.source)
        return tuple(tables)

    def published_tables(self, blocks: RequestBlocks, hashes: Sequence[bytes]) -> BlockIds:
        """Return the blocks of a request that are computed, full and named.

        The table of a state group has the snapshots behind such blocks that are there.
        """
        num_blocks = blocks.num_published
        tables = [tuple(table[:num_blocks]) for table in blocks.tables]
        if self._state_group is not None and self.states is not None:
            group, find = self._state_group, self.states.pool.find
            tables[group] = tuple(find(group, name) or NULL_BLOCK for name in hashes[:num_blocks])
        return tuple(tables)

    def pin(self, tables: BlockIds) -> None:
        """Hold the blocks and slots of tables for a transfer."""
        for group, table in zip(self.groups, tables, strict=True):
            self._pool_of(group).pin(table)

    def unpin(self, tables: BlockIds) -> None:
        """Undo one ``pin``."""
        for group, table in zip(self.groups, tables, strict=True):
            self._pool_of(group).unpin(table)

    def fork(self, parent: RequestBlocks, request_id: str, num_tokens: int) -> RequestBlocks:
        """Share the blocks of a request's first ``num_tokens`` tokens with another request.

        The last, partial block is shared too; the new request gets a copy when it first writes
        into it, which is when it first grows. Only for models without state groups.
        """
        assert self.states is None, "a state cannot be shared"
        num_shared = cdiv(num_tokens, self.block_size)
        blocks = RequestBlocks(
            tables=tuple(table[:num_shared] for table in parent.tables),
            num_published=min(parent.num_published, num_tokens // self.block_size),
            num_dropped=[min(count, num_shared) for count in parent.num_dropped],
            is_shared=num_tokens % self.block_size > 0,
        )
        for table in blocks.tables:
            self.pool.retain(table)
        self.holders[request_id] = blocks
        return blocks

    def grow(self, blocks: RequestBlocks, num_computed: int, num_tokens: int) -> BlockIds | None:
        """Make the tables cover ``num_tokens``, for a step that starts at ``num_computed``.

        Blocks that left a window are given back first; a block that is written and has another
        owner is replaced by a copy.

        Returns:
            The new ids of each group; an empty tuple where the tables cover it already. None where
            blocks are too few, and then no table has grown.
        """
        if self._is_simple and not blocks.is_shared:
            if len(blocks.tables[0]) * self.block_size >= num_tokens:
                return ()
            return self._extend(blocks, num_tokens)
        self._drop_passed(blocks, num_computed)
        if blocks.is_shared and not self._copy_shared(blocks, num_computed):
            return None
        return self._extend(blocks, num_tokens)

    def holds(self, blocks: RequestBlocks, num_tokens: int) -> bool:
        """Return whether a step could start after the first ``num_tokens`` tokens of a request."""
        if self.states is not None:
            return False
        for group, num_dropped in zip(self.groups, blocks.num_dropped, strict=True):
            first = max(0, num_tokens - group.window + 1) // self.block_size
            if group.kind == "sliding" and first < num_dropped:
                return False
        return True

    def publish(self, blocks: RequestBlocks, hashes: Sequence[bytes], num_computed: int) -> None:
        """Make the full blocks findable whose KV is computed; nothing happens twice."""
        num_full = min(num_computed // self.block_size, len(hashes))
        for index in range(blocks.num_published, num_full):
            for g in self._token_groups:
                block_id = blocks.tables[g][index]
                if block_id != NULL_BLOCK:
                    self.pool.publish(g, hashes[index], block_id)
        blocks.num_published = max(blocks.num_published, num_full)

    def rollback(self, blocks: RequestBlocks, hashes: Sequence[bytes], num_tokens: int) -> int:
        """Go back to at most ``num_tokens`` computed tokens; return how many stay valid.

        That is ``num_tokens`` where the groups have kept what a step after it reads. Otherwise it
        is the longest start that every group can be found at, and the tables are made anew for it.
        """
        if self.holds(blocks, num_tokens):
            num_kept = cdiv(num_tokens, self.block_size)
            for table in blocks.tables:
                self.pool.release(reversed(table[num_kept:]))
                del table[num_kept:]
            blocks.num_published = min(blocks.num_published, num_tokens // self.block_size)
            blocks.is_shared = num_tokens % self.block_size > 0
            return num_tokens
        num_valid = self.find_prefix(hashes, num_tokens)
        kept = [
            self.lookup.blocks(g, hashes, num_valid // self.block_size) for g in self._token_groups
        ]
        for g, found in zip(self._token_groups, kept, strict=True):
            self.pool.retain(found)
            self.pool.release(reversed(blocks.tables[g]))
            blocks.tables[g][:] = found
            blocks.num_dropped[g] = found.count(NULL_BLOCK)
        blocks.num_published = num_valid // self.block_size
        if self.states is not None and blocks.state is not None:
            self.states.restart(blocks.state, self._name_of(hashes, num_valid), num_valid)
        return num_valid

    def free(self, request_id: str) -> None:
        """Give back the blocks of a request; nothing happens where it holds none.

        The ends of tables are released first, so that they are evicted before the starts.
        """
        blocks = self.holders.pop(request_id, None)
        if blocks is None:
            return
        for table in blocks.tables:
            self.pool.release(reversed(table))
        if self.states is not None and blocks.state is not None:
            self.states.free(blocks.state)

    def reset_prefix_cache(self) -> int:
        """Make no block findable any more; return how many were."""
        self.prefix_stats.num_resets += 1
        num_states = 0 if self.states is None else self.states.pool.reset()
        return self.pool.reset() + num_states

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Return the copies to make before the next step, once."""
        if not self.copies:
            return ()
        copies = tuple(self.copies)
        self.copies.clear()
        return copies

    def drop_copies(self) -> None:
        """Forget the copies of a step that is given up."""
        self.copies.clear()

    def check_integrity(self) -> None:
        """Assert that counts equal the uses in all tables and that no table holds an id twice."""
        self.pool.check_integrity()
        uses = [0] * (self.pool.num_blocks + 1)
        for request_id, blocks in self.holders.items():
            ids = [b for g in self._token_groups for b in blocks.tables[g] if b != NULL_BLOCK]
            assert len(set(ids)) == len(ids), f"{request_id}: a block is twice in its tables"
            for block_id in ids:
                uses[block_id] += 1
        for block_id in range(1, len(uses)):
            held = self.pool.ref_count(block_id) - self.pool.pin_count(block_id)
            assert held == uses[block_id], (
                f"block {block_id}: {held} references, {uses[block_id]} uses"
            )
        self._check_states()

    def _check_states(self) -> None:
        if self.states is None:
            return
        pool = self.states.pool
        pool.check_integrity()
        states = [blocks.state for blocks in self.holders.values()]
        assert None not in states, "a request without a state runs"
        own = [state.own for state in states if state is not None]
        assert len(set(own)) == len(own), "two requests have one state"
        held = Counter(s for state in states if state for s in self.states.slots_of(state))
        for slot in range(1, pool.num_blocks + 1):
            count = pool.ref_count(slot) - pool.pin_count(slot)
            assert count == held[slot], f"slot {slot}: {count} references, {held[slot]} uses"

    def _pool_of(self, group: CacheGroup) -> BlockPool:
        if group.kind != "state":
            return self.pool
        assert self.states is not None, "a state group has slots"
        return self.states.pool

    def _make_states(self, num_slots: int) -> StateManager | None:
        if self._state_group is None:
            return None
        full = next((g for g in self._token_groups if self.groups[g].kind == "full"), None)

        def is_reachable(name: bytes) -> bool:
            return full is None or self.pool.find(full, name) is not None

        pool = StatePool(num_slots, num_groups=len(self.groups), is_reachable=is_reachable)
        every = round_up(self.groups[self._state_group].snapshot_every, self.block_size)
        return StateManager(pool, self._state_group, self.block_size, every)

    def _name_of(self, hashes: Sequence[bytes], num_tokens: int) -> bytes | None:
        """Return the name of the block that ends a start, None for the empty one."""
        return hashes[num_tokens // self.block_size - 1] if num_tokens else None

    def _extend(
        self, blocks: RequestBlocks, num_tokens: int, *, full_only: bool = False
    ) -> BlockIds | None:
        """Append new blocks to the tables; all groups get theirs, or none."""
        wanted = cdiv(num_tokens, self.block_size)
        missing = [
            0
            if group.kind == "state" or (full_only and group.kind != "full")
            else max(0, wanted - len(table))
            for group, table in zip(self.groups, blocks.tables, strict=True)
        ]
        if not any(missing):
            return ()
        taken = self.pool.allocate(sum(missing))
        if taken is None:
            return None
        new_ids = []
        at = 0
        for table, count in zip(blocks.tables, missing, strict=True):
            ids = taken[at : at + count]
            at += count
            table.extend(ids)
            new_ids.append(tuple(ids))
        return tuple(new_ids)

    def _drop_passed(self, blocks: RequestBlocks, num_computed: int) -> None:
        """Give back the blocks that no later token of a sliding group sees."""
        for g, group in enumerate(self.groups):
            if group.kind == "sliding":
                first_seen = max(0, num_computed - group.window + 1)
                self._drop_before(blocks, g, first_seen // self.block_size)

    def _drop_before(self, blocks: RequestBlocks, group: int, index: int) -> None:
        table, first = blocks.tables[group], blocks.num_dropped[group]
        last = min(index, len(table))
        if last > first:
            self.pool.release(reversed(table[first:last]))
            table[first:last] = [NULL_BLOCK] * (last - first)
            blocks.num_dropped[group] = last

    def _copy_shared(self, blocks: RequestBlocks, num_computed: int) -> bool:
        """Replace the block that is written next by a copy where it has another owner."""
        index = num_computed // self.block_size
        shared = [
            g
            for g in self._token_groups
            if index < len(blocks.tables[g])
            and blocks.tables[g][index] != NULL_BLOCK
            and self.pool.ref_count(blocks.tables[g][index]) > 1
        ]
        taken = self.pool.allocate(len(shared))
        if taken is None:
            return False
        for g, new in zip(shared, taken, strict=True):
            old = blocks.tables[g][index]
            blocks.tables[g][index] = new
            self.copies.append(BlockCopy(g, old, new))
            self.pool.release((old,))
        blocks.is_shared = False
        return True

    def _num_hit_blocks(self, num_hit: int, num_tokens: int) -> int:
        """Return how many of the most blocks of a request its hit gives."""
        given = 0
        for g in self._token_groups:
            most = self.groups[g].max_blocks(num_tokens, self.block_size, self.max_step_tokens)
            have = self.groups[g].max_blocks(num_hit, self.block_size, 1)
            given += min(most, have)
        return given
