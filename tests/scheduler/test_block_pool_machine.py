"""BlockPool against a model of it: any order of calls keeps each block in one state."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyvt.scheduler.block_pool import BlockPool

NUM_BLOCKS = 6
HASHES = [bytes([i]) * 32 for i in range(5)]


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: owners of each block, and which hash leads to which block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, num_groups=2)
        self.owners: Counter[int] = Counter()
        self.pins: Counter[int] = Counter()
        self.known: dict[tuple[int, bytes], int] = {}

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        held = {block_id for block_id, owners in self.owners.items() if owners}
        taken = self.pool.allocate(count)
        if count > NUM_BLOCKS - len(held):
            assert taken is None
            return
        assert taken is not None
        assert len(set(taken)) == count
        assert not held & set(taken)
        self.owners.update(taken)
        self.known = {key: b for key, b in self.known.items() if b not in taken}

    @rule(pick=st.randoms(use_true_random=False))
    def release(self, pick: object) -> None:
        held = sorted(b for b, owners in self.owners.items() if owners > self.pins[b])
        if held:
            block_id = pick.choice(held)  # type: ignore[attr-defined]
            self.pool.release([block_id])
            self.owners[block_id] -= 1

    @rule(group=st.integers(0, 1), index=st.integers(0, 4), pin=st.booleans())
    def find_and_hold(self, group: int, index: int, pin: bool) -> None:
        found = self.pool.find(group, HASHES[index])
        assert found == self.known.get((group, HASHES[index]))
        if found is not None:
            self.pool.pin([found]) if pin else self.pool.retain([found])
            self.owners[found] += 1
            self.pins[found] += pin

    @rule()
    def unpin(self) -> None:
        pinned = list(self.pins.elements())
        self.pool.unpin(pinned)
        self.owners.subtract(pinned)
        self.pins.clear()

    @rule(group=st.integers(0, 1), index=st.integers(0, 4), place=st.integers(0, 5))
    def publish(self, group: int, index: int, place: int) -> None:
        held = sorted(block_id for block_id, owners in self.owners.items() if owners)
        if place >= len(held):
            return
        key, block_id = (group, HASHES[index]), held[place]
        is_new = key not in self.known and block_id not in self.known.values()
        assert self.pool.publish(*key, block_id) is is_new
        if is_new:
            self.known[key] = block_id

    @rule(block_id=st.integers(1, NUM_BLOCKS))
    def forget(self, block_id: int) -> None:
        self.pool.forget([block_id])
        self.known = {key: b for key, b in self.known.items() if b != block_id}

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == len(self.known)
        self.known.clear()

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check_integrity()
        for block_id in range(1, NUM_BLOCKS + 1):
            assert self.pool.ref_count(block_id) == self.owners[block_id]
        held = sum(owners > 0 for owners in self.owners.values())
        assert self.pool.num_free_blocks == NUM_BLOCKS - held


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
