"""StatePool: slots for the states of linear attention, of requests that run and of boundaries.

A slot is held, kept or free as a block is. A kept one is a snapshot: the state behind a boundary
of some text, found by the name of the block that ends there. All have the same size, so what a
snapshot is worth for its bytes is the tokens that it spares: those since the snapshot before it.
Where no slot is free the snapshot is taken that is worth least; the worth of the last one taken is
added to that of each later use, so that what nobody asks for grows old.

Source: Cao and Irani 1997, "Cost-aware WWW proxy caching algorithms" (GreedyDual-Size).
"""

from collections.abc import Callable, Iterable

from pyvt.scheduler.block_pool import BlockPool


class StatePool(BlockPool):
    """Slots ``1 … num_blocks``; one group.

    Attributes:
        num_snapshots: snapshots that were made.
    """

    __slots__ = ("_age", "_is_reachable", "_priorities", "_worths", "num_snapshots")

    def __init__(
        self,
        num_slots: int,
        *,
        num_groups: int = 1,
        is_reachable: Callable[[bytes], bool] = lambda name: True,
    ) -> None:
        """``is_reachable`` says whether the KV up to a boundary is still there."""
        super().__init__(num_slots, num_groups=num_groups)
        self.num_snapshots = 0
        self._is_reachable = is_reachable
        self._age = 0.0
        self._worths: dict[int, int] = {}
        self._priorities: dict[int, float] = {}

    def keep(self, group: int, name: bytes, slot: int, num_spared: int) -> bool:
        """Make a held slot a snapshot; return False where there is one of this name.

        ``num_spared`` is the number of tokens that it spares.
        """
        if not self.publish(group, name, slot):
            return False
        self.num_snapshots += 1
        self._worths[slot] = num_spared
        self._priorities[slot] = self._age + num_spared
        return True

    def retain(self, block_ids: Iterable[int]) -> None:
        """Add an owner to slots; a snapshot that is used is young again."""
        block_ids = tuple(block_ids)
        super().retain(block_ids)
        for slot in block_ids:
            if slot in self._worths:
                self._priorities[slot] = self._age + self._worths[slot]

    def _evict(self) -> int:
        slot = min(self._kept, key=self._value)
        self._age = max(self._age, self._priorities.get(slot, 0.0))
        del self._kept[slot]
        self._drop_hash(slot)
        self.num_evictions += 1
        return slot

    def _value(self, slot: int) -> tuple[bool, float]:
        name = self.hash_of(slot)
        assert name is not None, "a kept slot has a name"
        return self._is_reachable(name), self._priorities.get(slot, 0.0)

    def _drop_hash(self, block_id: int) -> None:
        super()._drop_hash(block_id)
        self._worths.pop(block_id, None)
        self._priorities.pop(block_id, None)
