"""BlockPool: the KV blocks, their reference counts and the free list."""

from collections.abc import Iterable


class BlockPool:
    """Blocks ``0 … num_blocks - 1``; each is free, or held by as many owners as its count says.

    The block freed last is reused first, so memory that was never written stays untouched: a big
    pool costs only what is in use at the same time.
    """

    __slots__ = ("_free", "_ref_counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, num_blocks: int) -> tuple[int, ...] | None:
        """Return that many free blocks with a count of 1, or None where there are too few."""
        if num_blocks > len(self._free):
            return None
        block_ids = tuple(self._free.pop() for _ in range(num_blocks))
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def retain(self, block_ids: Iterable[int]) -> None:
        """Add an owner to blocks that are held."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is free, so cannot be shared"
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Take an owner from held blocks; the last release frees a block.

        Blocks are freed in the order given and reused in the opposite order.
        """
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is released twice"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)

    def ref_count(self, block_id: int) -> int:
        """Return the number of owners of a block."""
        return self._ref_counts[block_id]

    def check_integrity(self) -> None:
        """Assert that the free list is exactly the blocks without an owner, each once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        unowned = {block_id for block_id, count in enumerate(self._ref_counts) if count == 0}
        assert free == unowned, f"free list and reference counts differ: {free ^ unowned}"
        assert min(self._ref_counts, default=0) >= 0, "a reference count is negative"
