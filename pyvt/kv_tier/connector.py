"""KVConnector: the seam between an engine and a store of KV that outlives its blocks.

A connector has two halves. The scheduler half is asked on the engine's thread and does no I/O; it
speaks of requests, block ids and names. The worker half moves bytes; it gets them through
``BlockAccess`` in one canonical layout, ``[layer][k|v][token][head][dim]``, little endian, and
never guesses another. A recurrent state is a block of its group too: in block tables it stands at
the index of the block that ends at its token, and the null block 0 stands everywhere else; its
layout is ``[layer][convolution|delta rule]``. The halves meet in the metadata that
``build_connector_meta`` makes for a step and in ``TransferResults``, so they may live in different
processes.

The order of a step:

1. ``get_num_new_matched_tokens`` for each request that starts, ``update_state_after_alloc`` when it
   has its blocks; ``build_connector_meta`` when the step is decided.
2. ``handle_preemptions``, ``start_load_kv``; ``wait_for_layer_load`` before the forward pass and
   ``save_kv_layer`` behind it, for each layer; ``wait_for_save``, ``get_transfer_results``.
3. ``update_connector_output``; ``request_finished_all_groups`` for each request that ended.

``register_kv_caches`` comes before the first step, ``shutdown`` behind the last one: an engine that
ends gives transfers that were ordered a second to end.

A failure of a load is a result and never an exception: the engine goes back to what it has and
computes the rest again. A lookup or the order of a store may raise ``KVTierError``, which counts as
a miss. The names are those of vLLM's ``KVConnectorBase_V1``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pyvt.config.cache import CacheGroup
from pyvt.messages import BlockIds, SchedulerOutput, TransferResults


class ConnectorRequest(Protocol):
    """What a connector may know of a request.

    Attributes:
        request_id: its identity.
        block_hashes: names of its full blocks; it grows with the request.
    """

    request_id: str
    block_hashes: list[bytes]

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        ...


class BlockAccess(Protocol):
    """The engine's blocks as bytes; one entry a block or state, in the canonical layout."""

    def export(self, group: int, block_ids: Sequence[int]) -> list[memoryview]:
        """Return copies of blocks of a group, of states for a state group."""
        ...

    def import_(
        self, group: int, block_ids: Sequence[int], views: Sequence[memoryview | bytes]
    ) -> None:
        """Fill blocks of a group. Raises ConfigError where a view has another size."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """How the engine's blocks lie, and who turns them into canonical bytes.

    Attributes:
        block_size: tokens of a block.
        groups: the cache groups, in the order of block tables.
        blocks: the engine's blocks as bytes; called on the thread that runs the steps.
    """

    block_size: int
    groups: tuple[CacheGroup, ...]
    blocks: BlockAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEvent:
    """A block that came into the store or left it."""

    kind: Literal["stored", "removed"]
    group: int
    block_hash: bytes


class KVConnector(Protocol):
    """Both halves; a class that has only one leaves the other to its peer."""

    def get_num_new_matched_tokens(
        self, req: ConnectorRequest, num_computed: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens behind ``num_computed`` can be loaded, and whether meanwhile.

        None asks to be asked again later; the request waits and holds nobody up. With True the
        request does not run before it is reported as received.
        """
        ...

    def update_state_after_alloc(
        self, req: ConnectorRequest, blocks_by_group: BlockIds, num_external: int
    ) -> None:
        """Note the blocks of a request that starts; its last ``num_external`` tokens are loaded.

        Called for those that no lookup was made for too: all of their logits are wanted.
        The table of a state group has one slot, for the state behind the last of these tokens.
        """
        ...

    def build_connector_meta(self, sched_out: SchedulerOutput) -> Any:
        """Return what the worker half must do in a step, None for nothing.

        Blocks of ``sched_out.finished_request_ids``, preempted requests among them, may be written
        by this step: what ``handle_preemptions`` must know of them goes into the metadata.
        """
        ...

    def request_finished_all_groups(
        self, req: ConnectorRequest, block_ids_by_group: BlockIds
    ) -> bool:
        """Note the end of a request; True keeps its blocks held until it is reported as sent.

        The blocks are those that are full and computed, whatever ended the request, and the states
        behind them that are kept.
        """
        ...

    def update_connector_output(self, results: TransferResults) -> None:
        """Note what the worker half has ended."""
        ...

    def take_events(self) -> Iterable[KVEvent]:
        """Return what has changed in the store since the last call."""
        ...

    def register_kv_caches(self, caches: Mapping[str, Any], layout: KVLayout) -> None:
        """Get the engine's blocks, once, before the first step.

        ``caches`` are the live arrays, by layer and part (``layers.0.k``), with the engine's own
        strides, on its device; ``layout.blocks`` gives and takes them as canonical bytes.
        """
        ...

    def start_load_kv(self, meta: Any) -> None:
        """Start the loads of a step; a load of a request that runs in it must end in it."""
        ...

    def wait_for_layer_load(self, layer: int) -> None:
        """Wait for the loads of a layer, before its attention."""
        ...

    def save_kv_layer(self, layer: int, kv: Sequence[Any], attn_meta: Any) -> None:
        """Start the stores of a layer, whose arrays the step has written.

        ``attn_meta`` are the indices of the step, a ``ForwardBatch``.
        """
        ...

    def wait_for_save(self) -> None:
        """Make sure that the blocks of this step's stores may be written again."""
        ...

    def get_transfer_results(self) -> TransferResults:
        """Return what has ended since the last call."""
        ...

    def handle_preemptions(self, meta: Any) -> None:
        """Let go of blocks of requests that the step forgets, before they are written again."""
        ...

    def shutdown(self) -> None:
        """End all transfers; called once, behind the last step."""
        ...
