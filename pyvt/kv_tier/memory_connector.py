"""MemoryConnector: a store in the memory of the process, for tests and as an example.

Whole blocks, and the states behind them that were kept, are stored under (name, group) when their
request has ended; a load copies them back. ``failing`` makes loads of names fail, ``is_async`` lets
requests wait for their loads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyvt.config.cache import FULL_GROUP, CacheGroup
from pyvt.kv_tier.connector import BlockAccess, ConnectorRequest, KVEvent, KVLayout
from pyvt.mathutil import cdiv
from pyvt.messages import BlockIds, SchedulerOutput, TransferResults

Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Move:
    """One block between store and engine."""

    request_id: str
    key: Key
    block_id: int


@dataclass(slots=True)
class Meta:
    """The transfers of a step."""

    loads: list[Move] = field(default_factory=list)
    saves: list[Move] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


class MemoryConnector:
    """A store of blocks that several engines of one process may share.

    Attributes:
        store: bytes by name and group.
        failing: names whose loads fail.
        is_async: whether a request waits for its load, which ends a step later.
        is_busy: asked before each lookup; true makes the request wait.
    """

    def __init__(
        self,
        block_size: int,
        *,
        groups: Sequence[CacheGroup] = (FULL_GROUP,),
        store: dict[Key, bytes] | None = None,
        is_async: bool = False,
    ) -> None:
        self.store: dict[Key, bytes] = {} if store is None else store
        self.failing: set[bytes] = set()
        self.is_async = is_async
        self.is_busy: Callable[[], bool] = lambda: False
        self.num_loaded = 0
        self.num_failed = 0
        self._block_size = block_size
        self._groups = tuple(groups)
        self._blocks: BlockAccess | None = None
        self._first_block: dict[str, int] = {}
        self._next = Meta()
        self._results: list[tuple[str, dict[int, set[int]]]] = []
        self._sent: set[str] = set()
        self._events: list[KVEvent] = []

    def get_num_new_matched_tokens(
        self, req: ConnectorRequest, num_computed: int
    ) -> tuple[int | None, bool]:
        """Return the longest start behind the computed one that every group has stored.

        A group with a window needs the blocks that the first query after the start sees, a group of
        states the one at its very end.
        """
        if self.is_busy():
            return None, False
        first = self._first_block[req.request_id] = num_computed // self._block_size
        last = min((req.num_tokens - 1) // self._block_size, len(req.block_hashes))
        while last > first and not self._has_all(req.block_hashes, first, last):
            last -= 1
        return (last - first) * self._block_size, self.is_async and last > first

    def _has_all(self, hashes: Sequence[bytes], first: int, last: int) -> bool:
        for g, group in enumerate(self._groups):
            begin = first
            if group.kind == "sliding":
                begin = max(first, last - cdiv(group.window - 1, self._block_size))
            elif group.kind == "state":
                begin = last - 1
            if any((block_hash, g) not in self.store for block_hash in hashes[begin:last]):
                return False
        return True

    def update_state_after_alloc(
        self, req: ConnectorRequest, blocks_by_group: BlockIds, num_external: int
    ) -> None:
        """Order the loads of a request that starts; nothing where it was not asked about."""
        first = self._first_block.pop(req.request_id, 0)
        for index in range(first, first + num_external // self._block_size):
            for group, table in enumerate(blocks_by_group):
                if index < len(table) and table[index]:
                    key = (req.block_hashes[index], group)
                    self._next.loads.append(Move(req.request_id, key, table[index]))

    def build_connector_meta(self, sched_out: SchedulerOutput) -> Meta | None:
        """Return the loads and stores that have been ordered."""
        meta, self._next = self._next, Meta()
        return meta if meta.loads or meta.saves or meta.finished else None

    def request_finished_all_groups(
        self, req: ConnectorRequest, block_ids_by_group: BlockIds
    ) -> bool:
        """Order the stores of a request's full blocks; they are held until that is done."""
        self._first_block.pop(req.request_id, None)
        num_before = len(self._next.saves)
        for group in range(len(self._groups)):
            for block_hash, block_id in zip(
                req.block_hashes, block_ids_by_group[group], strict=False
            ):
                if block_id and (block_hash, group) not in self.store:
                    self._next.saves.append(Move(req.request_id, (block_hash, group), block_id))
        if len(self._next.saves) == num_before:
            return False
        self._next.finished.append(req.request_id)
        return True

    def update_connector_output(self, results: TransferResults) -> None:
        """Count what failed."""
        self.num_failed += len(results.failed_received)

    def take_events(self) -> Iterable[KVEvent]:
        """Return the blocks that were stored."""
        events, self._events = self._events, []
        return events

    def register_kv_caches(self, caches: Mapping[str, Any], layout: KVLayout) -> None:
        """Keep the engine's blocks."""
        self._blocks = layout.blocks

    def start_load_kv(self, meta: Meta | None) -> None:
        """Copy blocks from the store; a failing name leaves its block as it is."""
        if meta is None:
            return
        assert self._blocks is not None, "blocks are registered before the first step"
        invalid: dict[str, dict[int, set[int]]] = {}
        for move in meta.loads:
            found = self.store.get(move.key)
            block_hash, group = move.key
            failures = invalid.setdefault(move.request_id, {})
            if found is None or block_hash in self.failing:
                failures.setdefault(group, set()).add(move.block_id)
            else:
                self._blocks.import_(group, [move.block_id], [found])
                self.num_loaded += 1
        self._results += invalid.items()
        self._save(meta)

    def wait_for_layer_load(self, layer: int) -> None:
        """Loads end in ``start_load_kv``."""

    def save_kv_layer(self, layer: int, kv: Sequence[Any], attn_meta: Any) -> None:
        """Whole blocks are stored, not layers."""

    def wait_for_save(self) -> None:
        """Stores end in ``start_load_kv``."""

    def get_transfer_results(self) -> TransferResults:
        """Return the loads that have ended, with the blocks that hold nothing."""
        ended, self._results = self._results, []
        sent, self._sent = frozenset(self._sent), set()
        invalid = tuple(
            frozenset(b for _, failures in ended for b in failures.get(group, ()))
            for group in range(len(self._groups))
        )
        return TransferResults(
            sent=sent,
            received=frozenset(request_id for request_id, _ in ended),
            failed_received=frozenset(request_id for request_id, failures in ended if failures),
            invalid_blocks=invalid,
        )

    def handle_preemptions(self, meta: Meta | None) -> None:
        """No transfer outlives the call that starts it."""

    def shutdown(self) -> None:
        """Forget what was ordered; the store stays."""
        self._next = Meta()

    def _save(self, meta: Meta) -> None:
        assert self._blocks is not None, "blocks are registered before the first step"
        for move in meta.saves:
            block_hash, group = move.key
            (view,) = self._blocks.export(group, [move.block_id])
            self.store[move.key] = bytes(view)
            self._events.append(KVEvent(kind="stored", group=group, block_hash=block_hash))
        self._sent.update(meta.finished)
