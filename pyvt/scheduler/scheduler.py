"""Scheduler: one token budget a step, for running requests first, then for waiting ones.

There is no prefill phase and no decode phase: each request has known tokens without KV, and a step
computes some of them. Decoding requests are served first, a token each, so a long prompt never
stops them; then prompts that are being prefilled, a chunk each; then waiting requests, in order.

A request is admitted with blocks for all of its known tokens at once, so a prefill never loses its
place. Decoding takes blocks as it grows; when none is free the last running request in order is
preempted: its blocks are released and it is computed again later, from what the prefix cache still
has. The first running request is never preempted for another and always fits, so every request
ends; ``docs/decisions/0210-bounds-of-waiting.md`` says when.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyvt.config import SchedulerConfig
from pyvt.errors import RequestError
from pyvt.kv_tier.connector import KVConnector
from pyvt.messages import (
    BlockIds,
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    ModelRunnerOutput,
    SchedulerOutput,
    StateSlots,
)
from pyvt.scheduler.admission import Admission, Verdict
from pyvt.scheduler.block_hash import BlockHasher
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.scheduler.request import Request, RequestStatus
from pyvt.scheduler.request_queue import RequestQueue
from pyvt.scheduler.stats import SchedulerStats
from pyvt.scheduler.step import StepPlan
from pyvt.scheduler.transfers import Transfers


class Scheduler:
    """Owns the queues; called by ``EngineCore``, one step at a time.

    A step is ``schedule()``, then ``update_from_output()``, or ``rollback()`` where the worker did
    not answer. Requests may be added and aborted between steps.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_manager: KVCacheManager,
        *,
        hasher: BlockHasher | None = None,
        watermark: float = 0.0,
        connector: KVConnector | None = None,
        num_lookahead_tokens: int = 0,
    ) -> None:
        """Make a scheduler without requests.

        Args:
            config: its settings.
            kv_cache_manager: who has the blocks.
            hasher: names blocks for the prefix cache; None turns the cache off.
            watermark: share of the blocks that stay free when a request starts beside others.
            connector: loads and stores KV beyond the pool; it needs ``hasher``.
            num_lookahead_tokens: tokens behind a sampled one whose KV the worker writes in the same
                step, as a model's own head does that drafts; they get blocks where any are free.
        """
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.hasher = hasher
        self._num_ahead = num_lookahead_tokens
        self._is_by_priority = config.scheduling_policy == "priority"
        self.transfers = None if connector is None else Transfers(connector, kv_cache_manager)
        self._admission = Admission(kv_cache_manager, hasher, watermark, self.transfers)
        self._requests: dict[str, Request] = {}
        self._waiting = RequestQueue()
        self._running = RequestQueue()
        self._forgotten: set[str] = set()
        self._num_preemptions = 0
        self._num_arrivals = 0

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    @property
    def has_transfers(self) -> bool:
        """Whether a KV connector has not reported the end of a transfer."""
        return self.transfers is not None and self.transfers.is_pending

    @property
    def unfinished_request_ids(self) -> tuple[str, ...]:
        """Ids of the requests that wait or run, in the order of arrival."""
        return tuple(self._requests)

    def stats(self) -> SchedulerStats:
        """Return the state of the queues and of the prefix cache."""
        manager = self.kv_cache_manager
        slots = None if manager.states is None else manager.states.pool
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            kv_cache_usage=manager.usage,
            prefix_queries=manager.prefix_stats.num_query_tokens,
            prefix_hits=manager.prefix_stats.num_hit_tokens,
            num_kept_blocks=manager.pool.num_kept_blocks,
            num_evictions=manager.pool.num_evictions,
            num_states=slots.num_blocks - slots.num_free_blocks if slots else 0,
            num_free_states=slots.num_free_blocks if slots else 0,
            num_kept_states=slots.num_kept_blocks if slots else 0,
            num_snapshots=slots.num_snapshots if slots else 0,
            num_state_evictions=slots.num_evictions if slots else 0,
        )

    def reset_prefix_cache(self) -> int:
        """Make all KV unfindable that is not in use; return how many blocks could be found."""
        return self.kv_cache_manager.reset_prefix_cache()

    def num_findable_tokens(
        self, token_ids: Sequence[int], *, tenant: str = "", cache_salt: str | None = None
    ) -> int:
        """Return how many tokens at the start of a prompt have their KV in the prefix cache now.

        What a request with this prompt would find; changes nothing.
        """
        return self._admission.num_findable_tokens(token_ids, tenant, cache_salt)

    def check_admissible(self, core: EngineCoreRequest) -> None:
        """Check that a request can be served at all. Changes nothing.

        Raises:
            RequestError: its id is in use, or even alone it would not fit into the KV blocks.
        """
        if core.request_id in self._requests:
            raise RequestError(
                f"[request] request_id: {core.request_id!r} is in use; choose another",
                param="request_id",
                code="invalid_value",
            )
        manager = self.kv_cache_manager
        num_tokens = Request(core).max_total_tokens
        need, have = manager.num_blocks_for(num_tokens), manager.pool.num_blocks
        if need > have:
            raise RequestError(
                f"[request] max_tokens: {len(core.prompt_token_ids)} prompt tokens and "
                f"{core.sampling_params.max_tokens} new ones need {need} KV blocks, the pool has "
                f"{have}; lower max_tokens or raise num_blocks",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add_request(self, core: EngineCoreRequest) -> None:
        """Queue a request. Raises RequestError as ``check_admissible`` does."""
        self.check_admissible(core)
        self._num_arrivals += 1
        priority = core.priority if self._is_by_priority else 0
        request = Request(core, (priority, self._num_arrivals))
        self._requests[core.request_id] = request
        self._waiting.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """End requests at once, blocks freed; return the ids that were unfinished."""
        aborted = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.status is not RequestStatus.LOADING:
                self._queue_of(request).remove(request)
            self._finish(request)
            aborted.append(request_id)
        return aborted

    def schedule(self, now_s: float = 0.0) -> SchedulerOutput:
        """Decide the next step. May preempt; ``num_computed_tokens`` changes only with the answer.

        Args:
            now_s: the engine clock; the scheduler has none of its own.

        Returns:
            An output without tokens where nothing can run.
        """
        step = StepPlan(self.config.max_num_batched_tokens, now_s)
        if self._is_by_priority:
            self._make_room()
        num_preemptions = self._num_preemptions
        prefills = self._grant_decodes(step)
        if self._is_by_priority and prefills and num_preemptions == self._num_preemptions:
            self._admit(step, before=prefills[0])
        for request in prefills:
            if request.status is RequestStatus.RUNNING and step.budget > 0:
                self._grant(step, request, self._chunk(request))
        if num_preemptions == self._num_preemptions:
            self._admit(step)
        output = SchedulerOutput(
            new_requests=tuple(step.new.values()),
            cached_requests=tuple(step.cached.values()),
            num_scheduled_tokens=step.granted,
            draft_token_ids=step.drafts,
            total_num_scheduled_tokens=self.config.max_num_batched_tokens - step.budget,
            finished_request_ids=frozenset(self._forgotten),
            block_copies=self.kv_cache_manager.take_copies(),
            state_slots=self._state_slots(step),
        )
        self._forgotten.clear()
        if self.transfers is not None:
            output = replace(output, transfers=self.transfers.meta(output))
        return output

    def update_from_output(
        self, scheduled: SchedulerOutput, answer: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Book a step's result: append tokens, end requests, free and publish blocks.

        Returns:
            One output for each request that got tokens or ended, in the order of the rows.
        """
        failed = self._take_transfers(answer) if self.transfers is not None else ()
        outputs = []
        size, has_cache = self.kv_cache_manager.block_size, self.hasher is not None
        states = self.kv_cache_manager.states
        old_drafts, new_drafts = scheduled.draft_token_ids, answer.draft_token_ids
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            if request_id in failed:
                continue  # its tokens were computed from KV that is not there
            request = self._requests[request_id]
            request.num_computed_tokens += num_tokens
            if old_drafts:
                request.num_computed_tokens -= len(old_drafts.get(request_id, ()))
            request.draft_token_ids = new_drafts.get(request_id, ()) if new_drafts else ()
            output = self._book(request, answer)
            if has_cache:
                assert request.blocks is not None, "a request that runs holds blocks"
                num_full = request.num_computed_tokens // size
                if num_full > request.blocks.num_published and request_id not in answer.errors:
                    self._publish(request)
            if states is not None and request_id not in answer.errors:
                assert request.blocks is not None, "a request that runs holds blocks"
                assert request.blocks.state is not None, "and a state"
                states.settle(
                    request.blocks.state,
                    request.block_hashes,
                    request.num_prompt_tokens,
                    request.num_computed_tokens,
                )
            if output is None:
                continue
            outputs.append(output)
            if output.finish_reason is not None:
                self._running.remove(request)
                self._finish(request)
        return outputs

    def rollback(self, scheduled: SchedulerOutput) -> None:
        """Undo a step that the worker did not answer.

        What the worker did is unknown, so all running requests are preempted: the worker forgets
        them and they are computed again, from blocks that were published before the step.
        """
        self._forgotten |= scheduled.finished_request_ids
        self.kv_cache_manager.drop_copies()
        for request in self._running:
            self._preempt(request)

    def rollback_request(self, request_id: str, num_tokens: int) -> int:
        """Take a running request back to at most ``num_tokens`` computed tokens, in all groups.

        The worker gets it whole again with the next step.

        Returns:
            The tokens that stay valid; the others are computed again.
        """
        request = self._requests[request_id]
        assert request.blocks is not None, f"{request_id} holds no blocks"
        num_tokens = min(num_tokens, request.num_computed_tokens, request.num_tokens - 1)
        valid = self.kv_cache_manager.rollback(request.blocks, request.block_hashes, num_tokens)
        request.num_computed_tokens = valid
        if request.is_known_to_worker:
            self._forgotten.add(request_id)
        request.is_known_to_worker = False
        return valid

    def check_integrity(self) -> None:
        """Assert what must hold between steps; raises AssertionError."""
        manager = self.kv_cache_manager
        manager.check_integrity()
        loading = () if self.transfers is None else tuple(self.transfers.loading.values())
        num_started = len(self._running) + len(loading)
        assert num_started <= self.config.max_num_seqs, "more requests run than may"
        for request in self._running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} does not run"
            assert manager.holders.get(request.request_id) is request.blocks, "blocks are lost"
        for request in self._waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits with status {request.status}"
            )
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with KV"
            assert request.blocks is None, f"{request.request_id} waits with blocks"
        for queue in (self._running, self._waiting):
            orders = [request.order for request in queue]
            assert orders == sorted(orders), "a queue is out of order"
        queued = [r.request_id for r in (*self._running, *self._waiting, *loading)]
        assert set(queued) == self._requests.keys(), "queues and requests differ"
        assert len(set(queued)) == len(queued), "a request is queued twice"
        if not num_started and not manager.pool.num_pinned_blocks:
            free, total = manager.pool.num_free_blocks, manager.pool.num_blocks
            assert free == total, f"nothing runs but {total - free} blocks are held"

    @property
    def _num_started(self) -> int:
        """Requests that hold blocks."""
        num_loading = 0 if self.transfers is None else len(self.transfers.loading)
        return len(self._running) + num_loading

    def _take_transfers(self, answer: ModelRunnerOutput) -> frozenset[str]:
        """Take what the connector has ended; return the requests whose load failed."""
        assert self.transfers is not None, "called with a connector only"
        results = self.transfers.update(answer.transfers)
        for request in self.transfers.take_loaded(results):
            self._running.add(request)
            if self.hasher is not None and request.request_id not in results.failed_received:
                self._publish(request)
        for request_id in results.failed_received:
            request_or_none = self._requests.get(request_id)
            if request_or_none is not None and request_or_none.status is RequestStatus.RUNNING:
                valid = self.transfers.first_invalid(request_or_none, results)
                valid = self.rollback_request(request_id, valid)
                request_or_none.num_cached_tokens = min(request_or_none.num_cached_tokens, valid)
        return results.failed_received

    def _queue_of(self, request: Request) -> RequestQueue:
        is_running = request.status is RequestStatus.RUNNING
        return self._running if is_running else self._waiting

    def _grant_decodes(self, step: StepPlan) -> list[Request]:
        """Grant each decoding request its token; return the requests in prefill, in order.

        Drafts are verified where budget and blocks last without taking them from others.
        """
        prefills = []
        running = tuple(self._running)
        has_drafts = any([request.draft_token_ids for request in running])
        num_spare = step.budget - sum(r.is_decoding for r in running) if has_drafts else 0
        is_running = RequestStatus.RUNNING
        # The common case is one call less.
        grow = None if self._num_ahead else self.kv_cache_manager.grow
        for request in running:
            if request.status is not is_running:
                continue
            if not request.is_decoding:
                prefills.append(request)
                continue
            if has_drafts and request.draft_token_ids:
                drafts = request.draft_token_ids[: max(0, num_spare)]
                if drafts and self._grant_drafts(step, request, drafts):
                    num_spare -= len(drafts)
                    continue
            computed = request.num_computed_tokens
            assert request.blocks is not None, "a request that runs holds blocks"
            if grow is None:
                new_ids = self._grow(request, 1)
            else:
                new_ids = grow(request.blocks, computed, computed + 1)
            if new_ids is None:
                self._grant(step, request, 1)
            else:
                step.grant(request, 1, new_ids)
        return prefills

    def _grant_drafts(self, step: StepPlan, request: Request, drafts: tuple[int, ...]) -> bool:
        """Grant a decoding request its token and drafts; return whether there were blocks."""
        assert request.blocks is not None, "a request that runs holds blocks"
        num_tokens = 1 + len(drafts)
        states, state = self.kv_cache_manager.states, request.blocks.state
        if states is not None and state is not None and not states.reserve(state, len(drafts)):
            return False
        new_ids = self._grow(request, num_tokens)
        if new_ids is None:
            if states is not None and state is not None:
                states.unreserve(state)
            return False
        step.grant(request, num_tokens, new_ids)
        step.drafts[request.request_id] = drafts
        return True

    def _chunk(self, request: Request) -> int:
        """Return the tokens of a prefill that a step may take."""
        return min(request.num_missing_tokens, self.config.max_prefill_chunk)

    def _state_slots(self, step: StepPlan) -> dict[str, StateSlots]:
        """Return where the states of the step's requests go, in a model that has states."""
        states = self.kv_cache_manager.states
        found: dict[str, StateSlots] = {}
        if states is None:
            return found
        for request_id, num_tokens in step.granted.items():
            request = self._requests[request_id]
            assert request.blocks is not None, "a request that runs holds blocks"
            assert request.blocks.state is not None, "and a state"
            found[request_id] = states.plan(
                request.blocks.state,
                None if self.hasher is None else request.block_hashes,
                request.num_prompt_tokens,
                request.num_computed_tokens,
                num_tokens,
            )
        return found

    def _grant(self, step: StepPlan, request: Request, num_tokens: int) -> None:
        """Put a running request into the step, preempting the last ones until it has blocks.

        It may be the last one itself; then it is preempted.
        """
        num_tokens = min(num_tokens, step.budget)
        new_ids = self._grow(request, num_tokens)
        while new_ids is None:
            victim = self._running[-1]
            step.revoke(victim)
            self._preempt(victim)
            if victim is request:
                return
            new_ids = self._grow(request, num_tokens)
        step.grant(request, num_tokens, new_ids)

    def _grow(self, request: Request, num_tokens: int) -> BlockIds | None:
        """Give a running request the blocks of its next tokens; None where they are too few.

        Where a token is sampled behind them, those of the lookahead come too, as far as there are
        any: the request will need them soon, and nobody is preempted for them.
        """
        assert request.blocks is not None, "a request that runs holds blocks"
        grow, computed = self.kv_cache_manager.grow, request.num_computed_tokens
        end = computed + num_tokens
        if self._num_ahead and end >= request.num_tokens:
            ahead = min(end + self._num_ahead, request.max_total_tokens)
            new_ids = grow(request.blocks, computed, max(end, ahead))
            if new_ids is not None:
                return new_ids
        return grow(request.blocks, computed, end)

    def _make_room(self) -> None:
        """Preempt requests of a worse priority than the first that waits for room alone."""
        first = self._first_ready()
        if first is None:
            return
        while self._running and self._running[-1].order[0] > first.order[0]:
            has_row = self._num_started < self.config.max_num_seqs
            if has_row and self._admission.has_room(first, self._num_started):
                return
            self._preempt(self._running[-1])

    def _first_ready(self) -> Request | None:
        """Return the first waiting request that goes before a running one and could start."""
        if not self._running:
            return None
        for request in self._waiting:
            if request.order[0] >= self._running[-1].order[0]:
                return None
            if self._admission.is_ready(request, self._requests.get(request.core.fork_of or "")):
                return request
        return None

    def _admit(self, step: StepPlan, *, before: Request | None = None) -> None:
        """Start waiting requests in order, while budget, rows and blocks last.

        A request that waits for another, as a fork does for its parent, is passed over. With
        ``before`` only requests that go before it are started.
        """
        index = 0
        while (
            index < len(self._waiting)
            and step.budget > 0
            and self._num_started < self.config.max_num_seqs
        ):
            request = self._waiting[index]
            if before is not None and request.order > before.order:
                return
            parent = self._requests.get(request.core.fork_of or "")
            verdict = self._admission.start(request, parent, self._num_started)
            if verdict is Verdict.LATER:
                index += 1
                continue
            if verdict is Verdict.NO_ROOM:
                return
            self._waiting.remove(request)
            if verdict is Verdict.LOADING:
                request.status = RequestStatus.LOADING
                continue
            request.status = RequestStatus.RUNNING
            self._running.add(request)
            self._grant(step, request, self._chunk(request))

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self.kv_cache_manager.free(request.request_id)
        if request.is_known_to_worker:
            self._forgotten.add(request.request_id)
        request.blocks = None
        request.is_known_to_worker = False
        request.num_computed_tokens = 0
        request.draft_token_ids = ()
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self._waiting.add(request)
        self._num_preemptions += 1

    def _book(self, request: Request, answer: ModelRunnerOutput) -> EngineCoreOutput | None:
        request_id = request.request_id
        if answer.errors and request_id in answer.errors:
            return EngineCoreOutput(
                request_id=request_id,
                finish_reason="error",
                error=answer.errors[request_id],
                scheduled_s=request.scheduled_s or 0.0,
                num_cached_tokens=request.num_cached_tokens,
            )
        token_ids = answer.sampled_token_ids.get(request_id, ())
        is_computed = len(request.token_ids) == request.num_computed_tokens
        assert bool(token_ids) == is_computed, (
            f"{request_id}: sampled {token_ids} mid-prompt or none"
        )
        if not is_computed:
            return None
        end: tuple[FinishReason, int | None] | None = None
        for index, token_id in enumerate(token_ids):
            end = request.append(token_id)
            if end is not None:
                token_ids = token_ids[: index + 1]
                break
        num_tokens = len(token_ids)
        # The KV of drafts that were right is valid; that of the last token is not written.
        request.num_computed_tokens += num_tokens - 1
        reason, stop_reason = end or (None, None)
        reason = "stop" if reason == "length" and request_id in answer.complete else reason
        logprobs, prompts = answer.logprobs, answer.prompt_logprobs
        return EngineCoreOutput(
            request_id,
            token_ids,
            tuple(logprobs.get(request_id, ())[:num_tokens]) if logprobs else (),
            prompts.get(request_id) if prompts else None,
            reason,
            stop_reason,
            None,
            request.scheduled_s or 0.0,
            request.num_cached_tokens,
            answer.pooled.get(request_id) if answer.pooled else None,
        )

    def _publish(self, request: Request) -> None:
        """Make the blocks findable that this step has filled."""
        assert request.blocks is not None, "a request that runs holds blocks"
        manager, computed = self.kv_cache_manager, request.num_computed_tokens
        num_full = computed // manager.block_size
        if num_full <= request.blocks.num_published:
            return
        self._admission.name_blocks(request, num_full)
        manager.publish(request.blocks, request.block_hashes, computed)

    def _finish(self, request: Request) -> None:
        """Forget a request that is in no queue any more."""
        request.status = RequestStatus.FINISHED
        if self.transfers is not None:
            self.transfers.finish(request)
        self.kv_cache_manager.free(request.request_id)
        request.blocks = None
        if request.is_known_to_worker:
            self._forgotten.add(request.request_id)
        del self._requests[request.request_id]
