"""BlockPool: the KV blocks, their reference counts, the free blocks and the blocks kept for reuse.

A block is in one of three states:

1. held: it has owners, as many as its count says;
2. kept: nobody holds it, but its KV is known by a hash and may be found again;
3. free: nobody holds it and nobody can find it.

A block is taken from the free ones, the one freed last first, so memory that was never written
stays untouched; where none is free, the kept block that was released first is taken and its hash
forgotten. Block ``NULL_BLOCK`` stands for "no block" in a table and is never given out.
"""

from collections import Counter
from collections.abc import Iterable

NULL_BLOCK = 0


class BlockPool:
    """Blocks ``1 … num_blocks``, shared by all cache groups that keep KV of tokens.

    Attributes:
        num_blocks: blocks that can be held, without the null block.
        num_evictions: kept blocks that were taken for other tokens.
    """

    __slots__ = (
        "_by_hash",
        "_free",
        "_hash_of",
        "_kept",
        "_pins",
        "_ref_counts",
        "num_blocks",
        "num_evictions",
    )

    def __init__(self, num_blocks: int, *, num_groups: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self._ref_counts = [0] * (num_blocks + 1)
        self._free = list(range(num_blocks, 0, -1))
        # Ordered by release, the oldest first: a dict keeps the order of insertion.
        self._kept: dict[int, None] = {}
        self._hash_of: dict[int, tuple[int, bytes]] = {}
        self._by_hash: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._pins: Counter[int] = Counter()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken: free and kept ones."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept_blocks(self) -> int:
        """Blocks that nobody holds and that may be found again."""
        return len(self._kept)

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that are held by pins."""
        return len(self._pins)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Return that many blocks with a count of 1, or None where there are too few."""
        if num_blocks > self.num_free_blocks:
            return None
        block_ids = []
        for _ in range(num_blocks):
            block_id = self._free.pop() if self._free else self._evict()
            self._ref_counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def retain(self, block_ids: Iterable[int]) -> None:
        """Add an owner to blocks that are held or kept; a null block is passed over."""
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            if self._ref_counts[block_id] == 0:
                assert block_id in self._kept, f"block {block_id} is free, so cannot be shared"
                del self._kept[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Take an owner from held blocks; the last release frees or keeps a block.

        Kept blocks are evicted in the order given, free ones reused in the opposite order. A null
        block is passed over.
        """
        counts = self._ref_counts
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            assert counts[block_id] > 0, f"block {block_id} is released twice"
            counts[block_id] -= 1
            if counts[block_id] == 0:
                if block_id in self._hash_of:
                    self._kept[block_id] = None
                else:
                    self._free.append(block_id)

    def pin(self, block_ids: Iterable[int]) -> None:
        """Hold blocks for someone who is no request, such as a transfer."""
        block_ids = [block_id for block_id in block_ids if block_id != NULL_BLOCK]
        self.retain(block_ids)
        self._pins.update(block_ids)

    def unpin(self, block_ids: Iterable[int]) -> None:
        """Undo one ``pin`` of each block."""
        block_ids = [block_id for block_id in block_ids if block_id != NULL_BLOCK]
        for block_id in block_ids:
            assert self._pins[block_id] > 0, f"block {block_id} is unpinned twice"
            self._pins[block_id] -= 1
            if self._pins[block_id] == 0:
                del self._pins[block_id]
        self.release(block_ids)

    def ref_count(self, block_id: int) -> int:
        """Return the number of owners of a block, pins included."""
        return self._ref_counts[block_id]

    def pin_count(self, block_id: int) -> int:
        """Return the number of pins of a block."""
        return self._pins[block_id]

    def find(self, group: int, block_hash: bytes) -> int | None:
        """Return the held or kept block of a group with that hash, None where there is none."""
        return self._by_hash[group].get(block_hash)

    def hash_of(self, block_id: int) -> bytes | None:
        """Return the hash that a block can be found by, None where it has none."""
        entry = self._hash_of.get(block_id)
        return None if entry is None else entry[1]

    def publish(self, group: int, block_hash: bytes, block_id: int) -> bool:
        """Make a held, full block findable; return False where another block has the hash already.

        Called when the KV of all its tokens has been computed, not before.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} is free, so has no KV"
        if block_id in self._hash_of or block_hash in self._by_hash[group]:
            return False
        self._hash_of[block_id] = (group, block_hash)
        self._by_hash[group][block_hash] = block_id
        return True

    def forget(self, block_ids: Iterable[int]) -> None:
        """Make blocks unfindable; those that nobody holds become free."""
        for block_id in block_ids:
            self._drop_hash(block_id)
            if block_id in self._kept:
                del self._kept[block_id]
                self._free.append(block_id)

    def reset(self) -> int:
        """Make every block unfindable; return how many could be found."""
        known = list(self._hash_of)
        self.forget(known)
        return len(known)

    def check_integrity(self) -> None:
        """Assert that each block is in exactly one state and that hashes lead both ways."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert NULL_BLOCK not in free, "the null block is free"
        assert NULL_BLOCK not in self._kept, "the null block is kept"
        assert not free & self._kept.keys(), "a block is free and kept"
        counts = self._ref_counts
        assert counts[NULL_BLOCK] == 0, "the null block has an owner"
        assert min(counts) >= 0, "a reference count is negative"
        unowned = {b for b in range(1, self.num_blocks + 1) if counts[b] == 0}
        found = free | self._kept.keys()
        assert found == unowned, f"free list and reference counts differ: {found ^ unowned}"
        assert not free & self._hash_of.keys(), "a free block has a hash"
        assert self._kept.keys() <= self._hash_of.keys(), "a kept block has no hash"
        by_hash = {b: (g, h) for g, known in enumerate(self._by_hash) for h, b in known.items()}
        assert by_hash == self._hash_of, "hashes and blocks differ"
        for block_id, count in self._pins.items():
            assert 0 < count <= counts[block_id], f"block {block_id} has more pins than owners"

    def _evict(self) -> int:
        block_id = next(iter(self._kept))
        del self._kept[block_id]
        self._drop_hash(block_id)
        self.num_evictions += 1
        return block_id

    def _drop_hash(self, block_id: int) -> None:
        entry = self._hash_of.pop(block_id, None)
        if entry is not None:
            group, block_hash = entry
            del self._by_hash[group][block_hash]
