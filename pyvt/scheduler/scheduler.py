"""Scheduler: one token budget a step, for running requests first, then for waiting ones.

There is no prefill phase and no decode phase: each request has known tokens without KV, and a step
computes some of them. Decoding requests are served first, a token each, so a long prompt never
stops them; then prompts that are being prefilled, a chunk each; then waiting requests, in order.

A request is admitted with blocks for all of its known tokens at once, so a prefill never loses its
place. Decoding takes blocks as it grows; when none is free the youngest running request is
preempted: its blocks are freed and it is computed again later. The oldest running request is
never preempted for another and always fits, so every request ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyvt.config import SchedulerConfig
from pyvt.errors import RequestError
from pyvt.messages import (
    CachedRequestData,
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from pyvt.scheduler.kv_cache_manager import KVCacheManager
from pyvt.scheduler.request import Request, RequestStatus
from pyvt.scheduler.request_queue import FCFSQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """The queues at one moment, and preemptions since the start."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    kv_cache_usage: float


class Scheduler:
    """Owns the queues; called by ``EngineCore``, one step at a time.

    A step is ``schedule()``, then ``update_from_output()``, or ``rollback()`` where the worker did
    not answer. Requests may be added and aborted between steps.
    """

    def __init__(self, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self._requests: dict[str, Request] = {}
        self._waiting = FCFSQueue()
        self._running: list[Request] = []
        self._forgotten: set[str] = set()
        self._num_preemptions = 0

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    @property
    def unfinished_request_ids(self) -> tuple[str, ...]:
        """Ids of the requests that wait or run, in the order of arrival."""
        return tuple(self._requests)

    def stats(self) -> SchedulerStats:
        """Return the state of the queues."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            kv_cache_usage=self.kv_cache_manager.usage,
        )

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
        request = self._requests[core.request_id] = Request(core)
        self._waiting.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """End requests and free their blocks at once; return the ids that were unfinished."""
        aborted = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                continue
            if request.status is RequestStatus.RUNNING:
                self._running.remove(request)
            else:
                self._waiting.remove(request)
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
        step = _Step(self.config.max_num_batched_tokens, now_s)
        num_preemptions = self._num_preemptions
        for request in [r for r in self._running if r.is_decoding]:
            self._grant_decode(step, request)
        for request in [r for r in self._running if not r.is_decoding]:
            self._grant(step, request, ())
        if self._num_preemptions == num_preemptions:
            self._admit(step)
        output = SchedulerOutput(
            new_requests=tuple(step.new),
            cached_requests=tuple(step.cached),
            num_scheduled_tokens=step.granted,
            total_num_scheduled_tokens=sum(step.granted.values()),
            finished_request_ids=frozenset(self._forgotten),
        )
        self._forgotten.clear()
        return output

    def update_from_output(
        self, scheduled: SchedulerOutput, answer: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Book a step's result: append tokens, end requests, free blocks.

        Returns:
            One output for each request that got tokens or ended, in the order of the rows.
        """
        outputs = []
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            request = self._requests[request_id]
            request.num_computed_tokens += num_tokens
            output = self._book(request, answer)
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
        them and they are computed again.
        """
        self._forgotten |= scheduled.finished_request_ids
        for request in reversed(list(self._running)):
            self._preempt(request)

    def check_integrity(self) -> None:
        """Assert what must hold between steps; raises AssertionError."""
        self.kv_cache_manager.check_integrity()
        assert len(self._running) <= self.config.max_num_seqs, "more requests run than may"
        for request in self._running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} does not run"
        for request in self._waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits with status {request.status}"
            )
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with KV"
        queued = {r.request_id for r in (*self._running, *self._waiting)}
        assert queued == self._requests.keys(), "queues and requests differ"
        assert len(queued) == len(self._running) + len(self._waiting), "a request is queued twice"
        if not self._running:
            free, total = self.kv_cache_manager.pool.num_free_blocks, self._num_blocks
            assert free == total, f"nothing runs but {total - free} blocks are held"

    @property
    def _num_blocks(self) -> int:
        return self.kv_cache_manager.pool.num_blocks

    def _grant_decode(self, step: "_Step", request: Request) -> None:
        """Grant a decoding request its token, preempting younger ones until it has a block.

        The youngest stands at the end of the rows, so it has no grant in this step yet.
        """
        while request.status is RequestStatus.RUNNING:
            new_ids = self.kv_cache_manager.allocate(request.request_id, request.num_tokens)
            if new_ids is not None:
                self._grant(step, request, new_ids)
                return
            self._preempt(self._running[-1])

    def _admit(self, step: "_Step") -> None:
        """Start waiting requests in order, while budget, rows and blocks last."""
        manager = self.kv_cache_manager
        while self._waiting and step.budget > 0 and len(self._running) < self.config.max_num_seqs:
            request = self._waiting.peek()
            # Every running request may need a block soon; without this reserve a request that has
            # just been admitted would be preempted again.
            need = manager.num_blocks_for(request.num_tokens)
            if need + len(self._running) * manager.num_groups > manager.pool.num_free_blocks:
                return
            taken = manager.allocate(request.request_id, request.num_tokens)
            assert taken is not None, "blocks that were free cannot be had"
            self._waiting.pop()
            request.status = RequestStatus.RUNNING
            self._running.append(request)
            self._grant(step, request, ())

    def _grant(self, step: "_Step", request: Request, new_ids: tuple[tuple[int, ...], ...]) -> None:
        """Put the request into the step with as many tokens as chunk and budget allow."""
        num_tokens = min(request.num_missing_tokens, self.config.max_prefill_chunk, step.budget)
        if num_tokens == 0:
            return
        request_id = request.request_id
        step.budget -= num_tokens
        step.granted[request_id] = num_tokens
        if request.is_known_to_worker:
            step.cached.append(
                CachedRequestData(
                    request_id=request_id,
                    new_block_ids=new_ids or ((),) * self.kv_cache_manager.num_groups,
                    num_computed_tokens=request.num_computed_tokens,
                )
            )
            return
        request.is_known_to_worker = True
        if request.scheduled_s is None:
            request.scheduled_s = step.now_s
        step.new.append(
            NewRequestData(
                request_id=request_id,
                prompt_token_ids=request.core.prompt_token_ids,
                output_token_ids=tuple(request.output_token_ids),
                sampling_params=request.core.sampling_params,
                eos_token_ids=request.core.eos_token_ids,
                block_ids=self.kv_cache_manager.block_ids(request_id),
                num_computed_tokens=request.num_computed_tokens,
                constraints=request.core.constraints,
            )
        )

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self.kv_cache_manager.free(request.request_id)
        if request.is_known_to_worker:
            self._forgotten.add(request.request_id)
        request.is_known_to_worker = False
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self._waiting.add_front(request)
        self._num_preemptions += 1

    def _book(self, request: Request, answer: ModelRunnerOutput) -> EngineCoreOutput | None:
        request_id = request.request_id
        scheduled_s = request.scheduled_s or 0.0
        if request_id in answer.errors:
            return EngineCoreOutput(
                request_id=request_id,
                finish_reason="error",
                error=answer.errors[request_id],
                scheduled_s=scheduled_s,
            )
        token_ids = answer.sampled_token_ids.get(request_id, ())
        is_computed = request.num_missing_tokens == 0
        assert bool(token_ids) == is_computed, (
            f"{request_id}: sampled {token_ids} mid-prompt or none"
        )
        if not is_computed:
            return None
        kept: list[int] = []
        end: tuple[FinishReason, int | None] | None = None
        for token_id in token_ids:
            kept.append(token_id)
            end = request.append(token_id)
            if end is not None:
                break
        return EngineCoreOutput(
            request_id=request_id,
            new_token_ids=tuple(kept),
            logprobs=tuple(answer.logprobs.get(request_id, ())[: len(kept)]),
            prompt_logprobs=answer.prompt_logprobs.get(request_id),
            finish_reason=None if end is None else end[0],
            stop_reason=None if end is None else end[1],
            scheduled_s=scheduled_s,
        )

    def _finish(self, request: Request) -> None:
        """Forget a request that is in no queue any more."""
        request.status = RequestStatus.FINISHED
        self.kv_cache_manager.free(request.request_id)
        if request.is_known_to_worker:
            self._forgotten.add(request.request_id)
        del self._requests[request.request_id]


class _Step:
    """A step while it is decided: the budget left and the grants, in the order of the rows."""

    __slots__ = ("budget", "cached", "granted", "new", "now_s")

    def __init__(self, budget: int, now_s: float) -> None:
        self.now_s = now_s
        self.budget = budget
        self.granted: dict[str, int] = {}
        self.new: list[NewRequestData] = []
        self.cached: list[CachedRequestData] = []
