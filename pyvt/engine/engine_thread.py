"""EngineThread: an ``LLMEngine`` on its own named thread, and the only one who steps it.

Other threads hand it commands through a queue and get events through sinks. The contract:

1. **Readiness.** The constructor returns when the thread runs. ``is_ready`` turns false for good
   when the engine fails or is shut down.
2. **Bound.** At most ``max_requests`` requests are accepted and unfinished at a time; beyond that
   ``submit`` refuses, or waits where it is told to. The queue holds at most an addition and one
   cancellation of each, however often it is cancelled, so it is bounded too.
3. **Events.** Each accepted request gets exactly one terminal event, whatever happens: its end, a
   cancellation, its deadline, a failure of the worker, a shutdown.
4. **Cancellation.** ``cancel`` never blocks and may be called anywhere, in a finalizer or a signal
   handler too. The terminal event comes after the step that runs.
5. **Failure.** An exception of the worker reaches every unfinished request as an
   ``EngineDeadError`` and every later caller too. A request that fails alone takes no other down.
6. **Shutdown.** Idempotent, from any thread; drains or aborts, then joins.
7. **Fork.** The thread stays with the process that made it; in a forked one every call says so.

Signals stay with the main thread: Ctrl-C never cuts a step in two and never costs a request a
token.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pyvt.engine.events import Event, Sink
from pyvt.engine.llm_engine import LLMEngine
from pyvt.errors import EngineDeadError, RequestError
from pyvt.log import get_logger
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput

log = get_logger(__name__)

T = TypeVar("T")

MAX_REQUESTS = 16_384


class _State(Enum):
    """Where the thread is; the last two are final, ``CLOSING`` leads to ``STOPPED``."""

    RUNNING = "running"
    CLOSING = "closing"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class _Add:
    requests: Sequence[EngineCoreRequest]
    is_stream: bool


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Stop:
    is_drain: bool


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[LLMEngine], Any]
    result: "Future[Any]" = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Accepted:
    """An unfinished request: where its events go, and whether its end was asked for."""

    sink: Sink
    is_cancelled: bool = False


class EngineThread:
    """Runs an engine; every method may be called by any thread.

    The thread keeps the engine alive: whoever makes one must shut it down. The end of the program
    does so too, and waits for the step that runs.

    Args:
        engine: belongs to the thread from now on.
        name: of the thread.
        max_requests: most requests that are accepted and unfinished.
    """

    def __init__(
        self, engine: LLMEngine, *, name: str = "pyvt-engine", max_requests: int = MAX_REQUESTS
    ) -> None:
        self.engine = engine
        self.max_requests = max_requests
        # SimpleQueue.put may be called again while it runs, which finalizers do.
        self._pid = os.getpid()
        self._commands: SimpleQueue[_Add | _Cancel | _Stop | _Call] = SimpleQueue()
        self._accepted: dict[str, _Accepted] = {}
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._num_waiting_for_room = 0
        self._state = _State.RUNNING
        self._cause: BaseException | None = None
        self._is_draining = False
        self._has_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._has_started.wait()
        # Python must not take itself apart while the thread is in native code.
        atexit.register(self.shutdown)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return self._state is _State.RUNNING and not self._is_forked

    def check_ready(self) -> None:
        """Check that requests are accepted; raises EngineDeadError where they are not."""
        if self._is_forked:
            raise EngineDeadError(
                "[engine] thread: does not live on in a forked process; load the model in the "
                "process that uses it, or start that one by spawn"
            )
        if self._state is not _State.RUNNING:
            raise self._dead()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; it does until a drain or a last step ends."""
        return self._thread.is_alive()

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that were accepted and have no terminal event yet."""
        return len(self._accepted)

    def submit(
        self,
        requests: Sequence[EngineCoreRequest],
        sink: Sink,
        *,
        is_stream: bool,
        is_waiting: bool = False,
    ) -> None:
        """Accept processed requests, all of them or none; their events go to ``sink``.

        Args:
            requests: what ``LLMEngine.process`` returned.
            sink: gets the events of all of them.
            is_stream: events with what is new, instead of one event at the end.
            is_waiting: wait for room instead of refusing; ``requests`` must fit at all.

        Raises:
            RequestError: a request can never be served, its id is in use, or there is no room
                (``code`` is ``queue_full``).
            EngineDeadError: the engine has failed or was shut down.
        """
        self.check_ready()
        self.engine.check_admissible(requests)
        with self._lock:
            self.check_ready()
            while len(self._accepted) + len(requests) > self.max_requests:
                if not is_waiting or len(requests) > self.max_requests:
                    raise self._full(len(requests))
                self._wait_for_room()
            for request in requests:
                if request.request_id in self._accepted:
                    raise _id_in_use(request.request_id)
            self._accepted.update({request.request_id: _Accepted(sink) for request in requests})
            self._commands.put(_Add(requests, is_stream))

    def cancel(self, request_id: str, sink: Sink | None = None) -> bool:
        """End a request soon; return False where it is unknown, finished or already being ended.

        With ``sink`` only the request whose events go there: ids of finished ones may come again.
        """
        found = self._accepted.get(request_id)
        if found is None or found.is_cancelled or (sink is not None and sink is not found.sink):
            return False
        found.is_cancelled = True
        self._commands.put(_Cancel(request_id))
        return True

    def call(self, function: Callable[[LLMEngine], T]) -> T:
        """Run a function between two steps, with the engine, and return what it returns.

        Commands that were given before it have been carried out. What it raises is raised here.

        Raises:
            EngineDeadError: the engine has failed or was shut down.
        """
        assert threading.current_thread() is not self._thread, "the engine would wait for itself"
        command = _Call(function)
        self.check_ready()
        with self._lock:
            self.check_ready()
            self._commands.put(command)
        result: T = command.result.result()
        return result

    def shutdown(self, *, is_drain: bool = False, timeout_s: float | None = None) -> bool:
        """End the thread: accept nothing more, finish or abort what is unfinished, join.

        May be called again: a later abort ends an earlier drain.

        Args:
            is_drain: run the unfinished requests to their ends; False aborts them.
            timeout_s: most seconds of the drain, after which the rest is aborted, and again most
                seconds for the last step; None waits as long as it takes.

        Returns:
            Whether the thread has ended. It has not where its last step still runs.
        """
        if self._is_forked:
            return True  # a lock might be held by a thread that is not here
        with self._lock:
            if self._state is _State.RUNNING:
                self._state = _State.CLOSING
                self._room.notify_all()
            self._commands.put(_Stop(is_drain))
        if threading.current_thread() is self._thread:
            return False
        self._thread.join(timeout_s)
        if is_drain and self._thread.is_alive():
            self._commands.put(_Stop(is_drain=False))
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        _block_signals()
        self._has_started.set()
        try:
            while self._take_commands():
                if self.engine.has_unfinished_requests:
                    self._deliver(self.engine.step())
        except BaseException as error:
            log.error("engine thread failed: %s: %s", type(error).__name__, error)
            self._close()
            self._end(_State.DEAD, error)
        else:
            self._close()
            self._end(_State.STOPPED, None)

    def _close(self) -> None:
        """Close the engine; what fails here fails nobody's request."""
        try:
            self.engine.close()
        except Exception as error:
            log.error("engine did not close: %s: %s", type(error).__name__, error)

    def _take_commands(self) -> bool:
        """Carry out what was asked for; wait for something to do. Returns False at the end."""
        while True:
            is_idle = not self.engine.has_unfinished_requests
            if is_idle and self._is_draining:
                return False
            try:
                command = self._commands.get(block=is_idle)
            except Empty:
                return True
            match command:
                case _Add(requests, is_stream):
                    self._add(requests, is_stream)
                case _Cancel(request_id):
                    self._deliver(self.engine.abort([request_id]))
                case _Call():
                    _answer(command, self.engine)
                case _Stop(is_drain=True):
                    self._is_draining = True
                case _Stop():
                    self._deliver(self.engine.abort(self.engine.unfinished_request_ids))
                    return False

    def _add(self, requests: Sequence[EngineCoreRequest], is_stream: bool) -> None:
        try:
            self.engine.add(requests, is_stream=is_stream)
            # A cancellation may have overtaken the addition.
            early = [r.request_id for r in requests if self._accepted[r.request_id].is_cancelled]
            if early:
                self._deliver(self.engine.abort(early))
        except Exception as error:
            for request in requests:
                refusal = RequestError(f"[engine] request: {type(error).__name__}: {error}")
                refusal.__cause__ = error
                self._finish(request.request_id, refusal)

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            if output.finished:
                self._finish(output.request_id, output)
            else:
                self._accepted[output.request_id].sink.put(output)

    def _finish(self, request_id: str, event: Event) -> None:
        """Give a request its terminal event."""
        self._accepted.pop(request_id).sink.put(event)
        if self._num_waiting_for_room:
            with self._room:
                self._room.notify_all()

    def _end(self, state: _State, cause: BaseException | None) -> None:
        """Answer everybody who still waits; nobody can come after them."""
        with self._lock:
            self._cause = cause
            self._state = state
            left, self._accepted = self._accepted, {}
            self._room.notify_all()
            while True:
                try:
                    command = self._commands.get_nowait()
                except Empty:
                    break
                if isinstance(command, _Call):
                    command.result.set_exception(self._dead())
        for accepted in left.values():
            accepted.sink.put(self._dead())
        atexit.unregister(self.shutdown)

    def _wait_for_room(self) -> None:
        self._num_waiting_for_room += 1
        try:
            self._room.wait()
        finally:
            self._num_waiting_for_room -= 1
        self.check_ready()

    def _dead(self) -> EngineDeadError:
        """Return a new error for one caller: a raised exception belongs to one thread."""
        if self._cause is None:
            return EngineDeadError("[engine] thread: was shut down; make a new engine")
        if isinstance(self._cause, EngineDeadError):
            error = EngineDeadError(str(self._cause))
            error.__cause__ = self._cause.__cause__
            return error
        text = f"{type(self._cause).__name__}: {self._cause}"
        error = EngineDeadError(f"[engine] thread: stopped by {text}; make a new engine")
        error.__cause__ = self._cause
        return error

    def _full(self, num_requests: int) -> RequestError:
        return RequestError(
            f"[engine] queue: expected at most {self.max_requests} unfinished requests, got "
            f"{len(self._accepted)} and {num_requests} more; try again later",
            code="queue_full",
        )


def _id_in_use(request_id: str) -> RequestError:
    return RequestError(
        f"[request] request_id: {request_id!r} is in use; choose another",
        param="request_id",
        code="invalid_value",
    )


def _answer(command: _Call, engine: LLMEngine) -> None:
    try:
        result = command.function(engine)
    except BaseException as error:
        command.result.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        command.result.set_result(result)


def _block_signals() -> None:
    """Leave these signals to the main thread, whose waits they would otherwise not interrupt."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
