"""EngineCore: one step is schedule → execute → update.

The core is synchronous and knows neither text nor tensors. Its caller owns the loop:
``add_request``, then ``step`` until nothing is unfinished.
"""

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
        self._woken = threading.Event()

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether a step would compute something."""
        return self.scheduler.num_unfinished_requests > 0 or self.scheduler.has_transfers

    def add_requests(self, requests: Sequence[EngineCoreRequest]) -> None:
        """Queue requests: all of them, or none.

        Raises:
            RequestError: one of them can never be served, or two have one id.
            EngineDeadError: the engine has stopped.
        """
        self._check_alive()
        ids = [request.request_id for request in requests]
        if len(set(ids)) != len(ids):
            raise RequestError(
                f"[request] request_id: expected each id once, got {ids}",
                param="request_id",
                code="invalid_value",
            )
        for request in requests:
            self.scheduler.check_admissible(request)
        for request in requests:
            self.scheduler.add_request(request)

    def end_requests(
        self, request_ids: Iterable[str], reason: Literal["stop", "abort"]
    ) -> list[str]:
        """End requests from outside and free their blocks at once; return those unfinished.

        ``stop`` is for a stop string, which only the output processor sees.
        """
        ended = self.scheduler.abort_requests(request_ids)
        self.stats.record_finished([reason] * len(ended))
        return ended

    def wake(self) -> None:
        """End the wait of a step in which no request can run; any thread may call it."""
        self._woken.set()

    def step(self) -> list[EngineCoreOutput]:
        """Run one step; return an output for each request that got tokens or ended.

        A ``KeyboardInterrupt`` in the worker leaves the engine usable: the step is undone.

        Raises:
            EngineDeadError: the worker failed; its error is the cause. All requests are dropped.
        """
        self._check_alive()
        if not self.has_unfinished_requests:
            return []
        start = self.clock()
        scheduled = self.scheduler.schedule(start)
        if not scheduled.num_scheduled_tokens:
            # The worker is asked again for transfers soon, or at once when one has ended.
            assert self.scheduler.has_transfers, "requests wait but none can run"
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
        times = (start, scheduled_at, executed_at, self.clock())
        self.stats.record_step(times, scheduled, outputs, self.scheduler.stats())
        return outputs

    def _check_alive(self) -> None:
        if self._fatal is not None:
            raise self._dead() from self._fatal

    def _dead(self) -> EngineDeadError:
        return EngineDeadError(
            f"[engine] step: stopped by {type(self._fatal).__name__}: {self._fatal}; "
            "make a new engine"
        )
