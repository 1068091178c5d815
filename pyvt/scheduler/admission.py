"""Admission: whether a waiting request can start now, and its first blocks."""

from collections.abc import Sequence
from enum import Enum

from pyvt.mathutil import cdiv
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.scheduler.request import Request, RequestStatus
from pyvt.scheduler.transfers import Transfers


class Verdict(Enum):
    """What became of a try to start a request: ``LATER`` does not hold up those behind it."""

    STARTED = "started"
    LOADING = "loading"
    NO_ROOM = "no room"
    LATER = "later"


class Admission:
    """Starts requests for the scheduler: prefix hit, then room, then blocks."""

    __slots__ = ("_hasher", "_manager", "_transfers", "_watermark_blocks")

    def __init__(
        self,
        manager: KVCacheManager,
        hasher: BlockHasher | None,
        watermark: float,
        transfers: Transfers | None = None,
    ) -> None:
        self._transfers = transfers
        self._manager = manager
        self._hasher = hasher
        self._watermark_blocks = int(watermark * manager.pool.num_blocks)

    def name_blocks(self, request: Request, num_blocks: int) -> None:
        """Name the request's first full blocks, as far as they are not named yet."""
        assert self._hasher is not None, "names are made for the prefix cache"
        size = self._manager.block_size
        start = len(request.block_hashes) * size
        self._hasher.extend(
            request.block_hashes,
            request.token_ids[start : num_blocks * size],
            start=start,
            tenant=request.core.tenant,
            cache_salt=request.core.cache_salt,
        )

    def has_room(self, request: Request, num_running: int) -> bool:
        """Return whether a request could start now."""
        num_hit = self._hit(request)
        return self._has_room(request, num_hit, num_running)

    def is_ready(self, request: Request, parent: Request | None) -> bool:
        """Return whether a request waits for nothing but room."""
        if parent is not None and _is_fork(request, parent):
            return parent.num_computed_tokens >= request.num_prompt_tokens - 1
        if self._transfers is None or not self._uses_hits(request):
            return True
        return self._transfers.match(request, self._hit(request))[0] is not None

    def start(self, request: Request, parent: Request | None, num_running: int) -> Verdict:
        """Give a waiting request its blocks where there is room.

        At least one known token is left to compute, since its logits are needed; a hit is whole
        blocks, so a prompt of whole blocks that is all there computes its last block again.

        Args:
            request: whose turn it is.
            parent: the unfinished request whose prompt it shares, where it has one.
            num_running: requests that run beside it.
        """
        if parent is not None and _is_fork(request, parent):
            num_shared = request.num_prompt_tokens - 1
            if not self.is_ready(request, parent):
                return Verdict.LATER
            if parent.blocks is not None and self._manager.holds(parent.blocks, num_shared):
                return self._fork(request, parent, num_running)
        num_hit = self._hit(request)
        if not self._has_room(request, num_hit, num_running):
            return Verdict.NO_ROOM
        num_external, is_async = 0, False
        if self._transfers is not None and self._uses_hits(request):
            found, is_async = self._transfers.match(request, num_hit)
            if found is None:
                return Verdict.LATER
            num_external = found
        blocks = self._manager.start(
            request.request_id, request.block_hashes, num_hit, request.num_tokens
        )
        if blocks is None:
            return Verdict.NO_ROOM
        if num_external and not self._manager.cover(blocks, num_hit + num_external):
            self._manager.free(request.request_id)
            return Verdict.NO_ROOM
        request.blocks = blocks
        request.num_computed_tokens = num_hit + num_external
        self._count(request, num_hit, num_external)
        if self._transfers is not None:
            self._transfers.start(request, num_external, is_async=is_async)
        return Verdict.LOADING if is_async else Verdict.STARTED

    def _count(self, request: Request, num_hit: int, num_external: int) -> None:
        """Count the hit of a request's first start."""
        if request.num_cached_tokens >= 0:
            return
        request.num_cached_tokens = num_hit + num_external
        if self._hasher is not None:
            stats = self._manager.prefix_stats
            stats.num_queries += 1
            stats.num_query_tokens += request.num_prompt_tokens
            stats.num_hit_tokens += num_hit

    def _uses_hits(self, request: Request) -> bool:
        """Return whether KV that is there can stand for tokens: not where all of them are run."""
        params = request.core.sampling_params
        is_whole = params.prompt_logprobs is not None or params.prompt_pooling is not None
        return self._hasher is not None and not is_whole

    def num_findable_tokens(
        self, token_ids: Sequence[int], tenant: str, cache_salt: str | None
    ) -> int:
        """Return the tokens at the start of a prompt whose KV is there; changes nothing."""
        if self._hasher is None:
            return 0
        hashes: list[bytes] = []
        self._hasher.extend(hashes, token_ids, tenant=tenant, cache_salt=cache_salt)
        return self._manager.find_prefix(hashes, len(token_ids) - 1)

    def _hit(self, request: Request) -> int:
        """Return the tokens at the start of a request whose KV is there."""
        if self._hasher is None:
            return 0
        size = self._manager.block_size
        if len(request.block_hashes) < request.num_tokens // size:
            self.name_blocks(request, request.num_tokens // size)
        if not self._uses_hits(request):
            return 0
        return self._manager.find_prefix(request.block_hashes, request.num_tokens - 1)

    def _has_room(self, request: Request, num_hit: int, num_running: int) -> bool:
        """Return whether blocks for all known tokens are free, and some for those that run."""
        manager = self._manager
        if manager.states is not None and not manager.states.has_room:
            return False
        need = manager.num_missing_blocks(request.block_hashes, num_hit, request.num_tokens)
        return need + self._reserve(num_running) <= manager.pool.num_free_blocks

    def _reserve(self, num_running: int) -> int:
        """Return the blocks that stay free when a request starts beside others.

        Every request may need a block of each group soon; without this reserve a request that has
        just been admitted would be preempted again. One that runs alone needs no reserve.
        """
        if num_running == 0:
            return 0
        return max((num_running + 1) * self._manager.num_groups, self._watermark_blocks)

    def _fork(self, request: Request, parent: Request, num_running: int) -> Verdict:
        """Share the parent's prompt but for its last token, whose logits are needed."""
        manager = self._manager
        num_shared = request.num_prompt_tokens - 1
        need = cdiv(request.num_tokens, manager.block_size) - num_shared // manager.block_size
        need *= manager.num_groups
        if need + self._reserve(num_running) > manager.pool.num_free_blocks:
            return Verdict.NO_ROOM
        assert parent.blocks is not None, "a parent that has computed its prompt holds blocks"
        request.blocks = manager.fork(parent.blocks, request.request_id, num_shared)
        request.num_computed_tokens = num_shared
        request.num_cached_tokens = max(request.num_cached_tokens, num_shared)
        return Verdict.STARTED


def _is_fork(request: Request, parent: Request) -> bool:
    """Return whether a request can share what its parent has."""
    ours, theirs = request.core, parent.core
    return (
        ours.prompt_token_ids == theirs.prompt_token_ids
        and (ours.tenant, ours.cache_salt) == (theirs.tenant, theirs.cache_salt)
        and request.num_tokens == request.num_prompt_tokens
        and parent.status is not RequestStatus.FINISHED
    )
