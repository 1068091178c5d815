"""EngineCore: one step is schedule → execute → update.

The core is synchronous and knows neither text nor tensors. Its caller owns the loop and the
thread:

>>> core = EngineCore(scheduler, runner)
>>> core.add_requests([request])  # messages.EngineCoreRequest; refused here or answered below
>>> while core.has_unfinished_requests:
...     for output in core.step():  # messages.EngineCoreOutput
...         deliver(output)  # an output with a finish_reason is the request's last

What an embedder can rely on:

1. A request that ``add_requests`` took gets exactly one output with a finish reason from ``step``,
   unless its caller ends it with ``end_requests``, which then is its end.
2. A request that the worker cannot serve ends alone, with the reason ``error``.
3. When the worker fails as a whole, ``step`` raises ``EngineDeadError``, all requests are dropped
   and their blocks freed; every later call raises the same. A new core is needed.
4. ``check_admissible`` changes nothing and reads only what is fixed, beside the set of ids; other
   threads may call it. Everything else belongs to one thread.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from pyvt.engine.stats import EngineStats
from pyvt.errors import EngineDeadError, RequestError
from pyvt.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    ModelRunnerOutput,
    SchedulerOutput,
)
from pyvt.scheduler import Scheduler

_TRANSFER_POLL_S = 0.001
# Most seconds that transfers get to end when an engine does.
TRANSFER_GRACE_S = 1.0
Clock = Callable[[], float]


class Runner(Protocol):
    """What the core asks of a worker: ``ModelRunner``, or a fake."""

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step; called once for each step that has tokens.

        A request that fails alone is answered in ``errors``; an exception ends the engine.
        """
        ...


class EngineCore:
    """Owns the scheduler and the worker; not safe to call from two threads."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, *, clock: Clock = time.perf_counter
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.stats = EngineStats()
        self._fatal: BaseException | None = None
        self._deadlines: dict[str, float] = {}
        self._next_deadlines: list[tuple[float, str]] = []
        self._woken = threading.Event()

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step would compute something."""
        return self.scheduler.num_unfinished_requests > 0 or self.scheduler.has_transfers

    def check_admissible(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Check that requests can be served at all; any thread may call it.

        Raises:
            RequestError: one of them can never be served, or two have one id.
        """
        ids = [request.request_id for request in requests]
        if len(set(ids)) != len(ids):
            raise RequestError(
                f"[request] request_id: expected each id once, got {ids}",
                param="request_id",
                code="invalid_value",
            )
        for request in requests:
            self.scheduler.check_admissible(request)

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queue requests: all of them, or none.

        Raises:
            RequestError: as ``check_admissible`` does.
            EngineDeadError: the engine has stopped.
        """
        self._check_alive()
        self.check_admissible(requests)
        for request in requests:
            self.scheduler.add_request(request)
            if request.deadline_s is not None:
                self._deadlines[request.request_id] = request.deadline_s
                heapq.heappush(self._next_deadlines, (request.deadline_s, request.request_id))

    def end_requests(
        self, request_ids: Iterable[str], reason: Literal["stop", "abort", "error"]
    ) -> list[str]:
        """End requests from outside and free their blocks at once; return those unfinished.

        ``stop`` is for a stop string, which only the output processor sees; ``error`` for a text
        that it could not make.
        """
        ended = self.scheduler.abort_requests(request_ids)
        self._forget_deadlines(ended)
        self.stats.record_finished([reason] * len(ended))
        return ended

    def close(self) -> None:
        """End the transfers of a KV connector, behind the last request; called once.

        Those that were ordered get ``TRANSFER_GRACE_S`` to end: what a request has stored is to be
        found by the next engine.
        """
        transfers = self.scheduler.transfers
        if transfers is None:
            return
        end_s = time.monotonic() + TRANSFER_GRACE_S
        try:
            while self._fatal is None and transfers.is_pending and time.monotonic() < end_s:
                self.step()
        finally:
            transfers.shutdown()

    def wake(self) -> None:
        """End the wait of a step in which no request can run; any thread may call it."""
        self._woken.set()

    def step(self) -> list[EngineCoreOutput]:
        """Run one step; return an output for each request that got tokens or ended.

        A request whose deadline has passed ends first, with the reason ``abort``. A
        ``KeyboardInterrupt`` in the worker leaves the engine usable: the step is undone.

        Raises:
            EngineDeadError: the worker failed; its error is the cause. All requests are dropped.
        """
        self._check_alive()
        start = self.clock()
        expired = self._expire(start) if self._next_deadlines else []
        if not self.has_unfinished_requests:
            return expired
        scheduled = self.scheduler.schedule(start)
        if not scheduled.num_scheduled_tokens:
            # The connector is asked again soon, or at once when it has news.
            assert self.scheduler.transfers is not None, "requests wait but none can run"
            self._woken.wait(_TRANSFER_POLL_S)
            self._woken.clear()
        scheduled_at = self.clock()
        try:
            answer = self.runner.execute_model(scheduled)
            executed_at = self.clock()
            outputs = self.scheduler.update_from_output(scheduled, answer)
        except Exception as error:
            self._fatal = error
            self.scheduler.rollback(scheduled)
            self.scheduler.abort_requests(self.scheduler.unfinished_request_ids)
            raise self._dead() from error
        except BaseException:
            self.scheduler.rollback(scheduled)
            raise
        if scheduled.draft_token_ids:
            self.stats.record_drafts(scheduled, answer)
        times = (start, scheduled_at, executed_at, self.clock())
        self.stats.record_step(times, scheduled, outputs)
        if self._deadlines:
            self._forget_deadlines(o.request_id for o in outputs if o.finish_reason is not None)
        return expired + outputs if expired else outputs

    def _expire(self, now_s: float) -> list[EngineCoreOutput]:
        """End the requests whose deadline has passed."""
        passed = []
        while self._next_deadlines and self._next_deadlines[0][0] <= now_s:
            deadline_s, request_id = heapq.heappop(self._next_deadlines)
            # An entry outlives its request, whose id may have come again with a later deadline.
            if self._deadlines.get(request_id) == deadline_s:
                passed.append(request_id)
        return [
            EngineCoreOutput(
                request_id=request_id,
                finish_reason="abort",
                error="[engine] deadline: passed before the answer was complete",
            )
            for request_id in self.end_requests(passed, "abort")
        ]

    def _forget_deadlines(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._deadlines.pop(request_id, None)
        if not self._deadlines:
            self._next_deadlines.clear()

    def _check_alive(self) -> None:
        if self._fatal is not None:
            raise self._dead() from self._fatal

    def _dead(self) -> EngineDeadError:
        return EngineDeadError(
            f"[engine] step: stopped by {type(self._fatal).__name__}: {self._fatal}; "
            "make a new engine"
        )
