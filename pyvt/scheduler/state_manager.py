"""StateManager: from which slot the state of each request goes on, and which slots take it.

A state cannot be cut back to fewer tokens as KV can. So a step writes it not only behind its last
token but wherever it may be asked for again, each time into a slot of its own: behind each draft
but the last, and behind the boundaries of blocks that become snapshots. Nothing is ever copied:
what goes on from a snapshot reads that slot and writes another.

Snapshots are few, since one is as large as the KV of some hundred or thousand tokens:

1. behind the last whole block before a prompt's last token, for the next turn of a chat;
2. behind the last whole block of what was generated; it replaces the one before;
3. behind every ``snapshot_every`` tokens of a long prompt;
4. where a prompt leaves the ones before it: their KV goes on but no snapshot is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyvt.messages import StateSlots
from pyvt.scheduler.state_pool import StatePool

EMPTY = -1


@dataclass(slots=True, eq=False)
class RequestState:
    """The slots of one request; it holds each of them.

    Attributes:
        own: the slot that takes the state behind the last token of a step.
        source: the slot that the next step goes on from: ``own``, a snapshot, or ``EMPTY``.
        branch: where its prompt leaves the ones before it, 0 for nowhere.
        last_kept: tokens up to the snapshot before, 0 without one.
        tail: name of the snapshot of generated text, which the next one replaces.
        num_loaded: tokens of the state that a KV connector puts into ``source``, 0 for none.
        written: tokens and slot of each state that the step in flight writes, ``own`` left out.
        spares: slots for the drafts of the step that is being made.
    """

    own: int
    source: int
    branch: int = 0
    last_kept: int = 0
    tail: bytes | None = None
    num_loaded: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    spares: list[int] = field(default_factory=list)


class StateManager:
    """Owns the slots of one state group.

    Attributes:
        pool: the slots.
    """

    __slots__ = ("_block_size", "_every", "_group", "pool")

    def __init__(self, pool: StatePool, group: int, block_size: int, snapshot_every: int) -> None:
        self.pool = pool
        self._group = group
        self._block_size = block_size
        self._every = snapshot_every

    @property
    def has_room(self) -> bool:
        """Whether a request could start."""
        return self.pool.num_free_blocks > 0

    def start(self, name: bytes | None, num_hit: int, branch: int) -> RequestState | None:
        """Give a request its slot; it goes on from the snapshot ``name`` of ``num_hit`` tokens.

        Returns:
            None where no slot is free.
        """
        source = self._held_snapshot(name)
        taken = self.pool.allocate(1)
        if taken is None and source == EMPTY:
            return None
        if taken is None:
            # The snapshot is the last slot: the request takes it over.
            self.pool.forget((source,))
            return RequestState(own=source, source=source, branch=branch, last_kept=num_hit)
        return RequestState(own=taken[0], source=source, branch=branch, last_kept=num_hit)

    def expect(self, state: RequestState, num_tokens: int) -> None:
        """Take a slot for the state behind ``num_tokens``, which a KV connector loads.

        It becomes a snapshot with the step that goes on from it. Where no slot is free the state
        is loaded into the request's own.
        """
        self._leave_source(state)
        taken = self.pool.allocate(1)
        state.source = state.own if taken is None else taken[0]
        state.num_loaded = num_tokens

    def restart(self, state: RequestState, name: bytes | None, num_hit: int) -> None:
        """Take a request back to a snapshot, or to the start; a step in flight is lost."""
        self._leave_source(state)
        self.pool.release([*state.spares, *(slot for _, slot in state.written)])
        state.spares, state.written = [], []
        state.num_loaded = 0
        state.source = self._held_snapshot(name)
        state.last_kept = num_hit

    def reserve(self, state: RequestState, num_drafts: int) -> bool:
        """Take slots for the states behind drafts; return False where too few are free."""
        taken = self.pool.allocate(num_drafts)
        if taken is None:
            return False
        state.spares = taken
        return True

    def unreserve(self, state: RequestState) -> None:
        """Give back what ``reserve`` took."""
        self.pool.release(state.spares)
        state.spares = []

    def plan(
        self,
        state: RequestState,
        hashes: Sequence[bytes] | None,
        num_prompt_tokens: int,
        num_computed: int,
        num_tokens: int,
    ) -> StateSlots:
        """Return where the state goes in a step of ``num_tokens``, after all of it is granted.

        Without ``hashes`` there are no snapshots.
        """
        saves: list[tuple[int, int]] = []
        end = num_computed + num_tokens
        if state.spares:
            saves = list(enumerate(state.spares, num_computed + 1))
            state.spares = []
        elif hashes is not None:
            for position in self._boundaries(state, num_prompt_tokens, num_computed, end):
                index = position // self._block_size - 1
                if index < len(hashes) and self.pool.find(self._group, hashes[index]) is not None:
                    continue
                taken = self.pool.allocate(1)
                if taken is not None:
                    saves.append((position, taken[0]))
        state.written = saves
        if not saves or saves[-1][0] != end:
            saves = [*saves, (end, state.own)]
        return StateSlots(
            state.source, tuple((position - num_computed, slot) for position, slot in saves)
        )

    def settle(
        self,
        state: RequestState,
        hashes: Sequence[bytes],
        num_prompt_tokens: int,
        num_computed: int,
    ) -> None:
        """Book a step after which ``num_computed`` tokens are valid: keep snapshots, drop the rest.

        The state behind the last valid token is what the next step goes on from.
        """
        if state.num_loaded and state.source != state.own:
            self._keep(state, hashes, state.num_loaded, state.source)
            state.last_kept = state.num_loaded
        state.num_loaded = 0
        self._leave_source(state)
        state.source = state.own
        for position, slot in state.written:
            is_kept = position <= num_computed and self._keep(state, hashes, position, slot)
            if is_kept:
                self._replace_tail(state, hashes, num_prompt_tokens, position)
            if position != num_computed:
                self.pool.release((slot,))
            elif is_kept:
                state.source = slot
            else:
                self.pool.release((state.own,))
                state.own = state.source = slot
        state.written = []

    def free(self, state: RequestState) -> None:
        """Give all slots of a request back."""
        slots = [state.own, *state.spares, *(slot for _, slot in state.written)]
        if state.source not in (EMPTY, state.own):
            slots.append(state.source)
        self.pool.release(slots)
        state.spares, state.written = [], []

    def slots_of(self, state: RequestState) -> list[int]:
        """Return the slots that a request holds, for checks."""
        slots = [state.own, *state.spares, *(slot for _, slot in state.written)]
        return slots if state.source in (EMPTY, state.own) else [*slots, state.source]

    def _leave_source(self, state: RequestState) -> None:
        if state.source not in (EMPTY, state.own):
            self.pool.release((state.source,))

    def _held_snapshot(self, name: bytes | None) -> int:
        if name is None:
            return EMPTY
        source = self.pool.find(self._group, name)
        assert source is not None, "a hit has a snapshot at its end"
        self.pool.retain((source,))
        return source

    def _boundaries(
        self, state: RequestState, num_prompt_tokens: int, num_computed: int, end: int
    ) -> Iterator[int]:
        """Yield the ends of blocks within a step that become snapshots, in order."""
        size = self._block_size
        last = (num_prompt_tokens - 1) // size * size
        first = num_computed // size * size + size
        for position in range(first, end + 1, size):
            is_periodic = self._every and position % self._every == 0 and position < last
            is_generated = position > last and position + size > end
            if position in (last, state.branch) or is_periodic or is_generated:
                yield position

    def _keep(self, state: RequestState, hashes: Sequence[bytes], position: int, slot: int) -> bool:
        index, rest = divmod(position, self._block_size)
        if rest or index > len(hashes):
            return False
        spared = position - state.last_kept
        return self.pool.keep(self._group, hashes[index - 1], slot, spared)

    def _replace_tail(
        self, state: RequestState, hashes: Sequence[bytes], num_prompt_tokens: int, position: int
    ) -> None:
        if position < num_prompt_tokens:
            state.last_kept = position
            return
        before = None if state.tail is None else self.pool.find(self._group, state.tail)
        if before is not None and self.pool.ref_count(before) == 0:
            self.pool.forget((before,))
        state.tail = hashes[position // self._block_size - 1]
