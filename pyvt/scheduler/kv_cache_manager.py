"""KVCacheManager: the block tables of each request, one for each cache group.

A cache group is a set of layers that share block ids. Groups draw from one pool. A model whose
layers all keep every token has one group.
"""

from pyvt.mathutil import cdiv
from pyvt.messages import BlockIds
from pyvt.scheduler.block_pool import BlockPool


class KVCacheManager:
    """Gives requests the blocks that their tokens need and takes them back."""

    __slots__ = ("_tables", "block_size", "num_groups", "pool")

    def __init__(self, num_blocks: int, block_size: int, *, num_groups: int = 1) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.num_groups = num_groups
        self._tables: dict[str, tuple[list[int], ...]] = {}

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        return 1.0 - self.pool.num_free_blocks / self.pool.num_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that a request of that many tokens holds, over all groups."""
        return cdiv(num_tokens, self.block_size) * self.num_groups

    def allocate(self, request_id: str, num_tokens: int) -> BlockIds | None:
        """Make the request's tables cover ``num_tokens``; return the new ids of each group.

        Returns:
            Empty tuples where the tables cover it already; None where blocks are too few, and
            then nothing has changed.
        """
        tables = self._tables.get(request_id) or tuple([] for _ in range(self.num_groups))
        num_new = max(0, cdiv(num_tokens, self.block_size) - len(tables[0]))
        taken = self.pool.allocate(num_new * self.num_groups)
        if taken is None:
            return None
        new_ids = tuple(taken[i * num_new : (i + 1) * num_new] for i in range(self.num_groups))
        for table, ids in zip(tables, new_ids, strict=True):
            table.extend(ids)
        self._tables[request_id] = tables
        return new_ids

    def block_ids(self, request_id: str) -> BlockIds:
        """Return the tables of a request that holds blocks."""
        return tuple(tuple(table) for table in self._tables[request_id])

    def free(self, request_id: str) -> None:
        """Give back the blocks of a request; nothing happens where it holds none."""
        for table in self._tables.pop(request_id, ()):
            self.pool.release(reversed(table))

    def check_integrity(self) -> None:
        """Assert that counts equal the uses in all tables and that no table holds an id twice."""
        self.pool.check_integrity()
        uses = [0] * self.pool.num_blocks
        for request_id, tables in self._tables.items():
            lengths = {len(table) for table in tables}
            assert len(lengths) == 1, f"{request_id}: groups have tables of lengths {lengths}"
            ids = [block_id for table in tables for block_id in table]
            assert len(set(ids)) == len(ids), f"{request_id}: a block is twice in its tables"
            for block_id in ids:
                uses[block_id] += 1
        for block_id, count in enumerate(uses):
            held = self.pool.ref_count(block_id)
            assert held == count, f"block {block_id}: {held} references, {count} uses"
