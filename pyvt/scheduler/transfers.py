"""Transfers: what the scheduler asks of a KV connector, and the blocks that transfers hold.

Blocks that a transfer reads or writes are pinned until it is reported as ended, whatever becomes of
its request. A failed load takes its request back to the last token before the failure.
"""

from collections.abc import Iterable

from pyvt.errors import KVTierError
from pyvt.kv_tier.connector import KVConnector
from pyvt.log import get_logger
from pyvt.messages import BlockIds, SchedulerOutput, TransferResults
from pyvt.scheduler.block_pool import NULL_BLOCK
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.scheduler.request import Request, RequestStatus

log = get_logger(__name__)

_NO_RESULTS = TransferResults()


class Transfers:
    """The scheduler's side of a connector.

    Attributes:
        loading: requests that wait for their blocks to be filled.
        num_external_tokens: tokens that were loaded or are to be, since the start.
        num_failed_loads: loads that failed since the start.
        num_failed_calls: calls of the connector's scheduler half that failed; each is a miss, or a
            store that is left out.
    """

    __slots__ = (
        "_answers",
        "_connector",
        "_manager",
        "_pinned",
        "loading",
        "num_external_tokens",
        "num_failed_calls",
        "num_failed_loads",
    )

    def __init__(self, connector: KVConnector, manager: KVCacheManager) -> None:
        self._connector = connector
        self._manager = manager
        self._answers: dict[tuple[str, int], tuple[int | None, bool]] = {}
        self._pinned: dict[str, list[BlockIds]] = {}
        self.loading: dict[str, Request] = {}
        self.num_external_tokens = 0
        self.num_failed_loads = 0
        self.num_failed_calls = 0

    @property
    def is_pending(self) -> bool:
        """Whether a transfer has not been reported as ended."""
        return bool(self.loading or self._pinned)

    def match(self, request: Request, num_hit: int) -> tuple[int | None, bool]:
        """Return what can be loaded behind a hit, in whole blocks, and whether meanwhile.

        The connector is asked once a step.
        """
        asked = (request.request_id, num_hit)
        if asked not in self._answers:
            self._answers[asked] = self._ask(request, num_hit)
        found, is_async = self._answers[asked]
        if found is None:
            return None, False
        size = self._manager.block_size
        room = (request.num_tokens - 1) // size * size - num_hit
        assert 0 <= found <= room, f"{request.request_id}: {found} tokens to load, {room} wanted"
        assert found % size == 0, "loads are whole blocks"
        return found, is_async

    def start(self, request: Request, num_external: int, *, is_async: bool) -> None:
        """Note that a request has its blocks; the last of its computed tokens are to be loaded."""
        assert request.blocks is not None, "a request that loads holds blocks"
        tables = self._manager.loading_tables(request.blocks)
        self._connector.update_state_after_alloc(request, tables, num_external)
        self.num_external_tokens += num_external
        if is_async:
            self.loading[request.request_id] = request

    def meta(self, scheduled: SchedulerOutput) -> object | None:
        """Return what the worker half must do in a step."""
        self._answers.clear()
        meta: object | None = self._connector.build_connector_meta(scheduled)
        return meta

    def finish(self, request: Request) -> None:
        """Tell of a request's end, before its blocks are freed; pin them where they are used.

        The connector gets the blocks that are computed, whatever ended the request.
        """
        blocks = request.blocks
        if blocks is None:
            return
        tables = self._manager.published_tables(blocks, request.block_hashes)
        if self._is_stored(request, tables):
            self._pin(request.request_id, tables)
        if self.loading.pop(request.request_id, None) is not None:
            self._pin(request.request_id, self._manager.loading_tables(blocks))

    def shutdown(self) -> None:
        """End all transfers: no step follows."""
        self._connector.shutdown()

    def update(self, results: TransferResults | None) -> TransferResults:
        """Take results: unpin what has ended."""
        if results is None:
            return _NO_RESULTS
        self._connector.update_connector_output(results)
        self.num_failed_loads += len(results.failed_received)
        ended: Iterable[str] = results.sent | (results.received - self.loading.keys())
        for request_id in ended:
            for tables in self._pinned.pop(request_id, ()):
                self._manager.unpin(tables)
        return results

    def take_loaded(self, results: TransferResults) -> list[Request]:
        """Return the requests whose wait has ended, in the order of requests."""
        found = [self.loading.pop(name) for name in results.received if name in self.loading]
        for request in found:
            request.status = RequestStatus.RUNNING
        return sorted(found, key=lambda request: request.order)

    def first_invalid(self, request: Request, results: TransferResults) -> int:
        """Return the tokens before the first block of a request that holds nothing."""
        assert request.blocks is not None, "a request that loads holds blocks"
        size = self._manager.block_size
        first = request.num_computed_tokens
        tables = self._manager.loading_tables(request.blocks)
        for table, invalid in zip(tables, results.invalid_blocks, strict=False):
            for index, block_id in enumerate(table):
                if block_id != NULL_BLOCK and block_id in invalid:
                    first = min(first, index * size)
                    break
        return first

    def _ask(self, request: Request, num_hit: int) -> tuple[int | None, bool]:
        try:
            return self._connector.get_num_new_matched_tokens(request, num_hit)
        except KVTierError as error:
            self._count_failure(error)
            return 0, False

    def _is_stored(self, request: Request, tables: BlockIds) -> bool:
        try:
            return self._connector.request_finished_all_groups(request, tables)
        except KVTierError as error:
            self._count_failure(error)
            return False

    def _count_failure(self, error: KVTierError) -> None:
        self.num_failed_calls += 1
        log.warning("kv connector: %s", error)

    def _pin(self, request_id: str, tables: BlockIds) -> None:
        self._manager.pin(tables)
        self._pinned.setdefault(request_id, []).append(tables)
