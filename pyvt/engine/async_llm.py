"""AsyncLLM: one engine behind an event loop, one async iterator for each request.

>>> llm = AsyncLLM("model.gguf")
>>> async with llm.generate("Once upon a time", params) as stream:
...     async for output in stream:  # RequestOutput with what is new; the last is finished
...         print(output.outputs[0].text, end="")
>>> await llm.shutdown()

A reader that is behind may ``take`` all that waits at once. A read that is cancelled takes nothing
and loses nothing: the next read gets the same event. The request ends when its stream is closed or
dropped, when ``abort`` names it, or at its deadline.

Texts are tokenised on threads of a small pool, requests with a grammar wait for it on others, the
engine steps on its own, and what a step brings wakes the loop once, however many requests it is
for.
"""

import asyncio
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pyvt.config import EngineConfig, engine_config
from pyvt.engine.build import build_engine
from pyvt.engine.engine_thread import MAX_REQUESTS, EngineThread
from pyvt.engine.events import Event, event_bound
from pyvt.engine.input_processor import Prompt
from pyvt.engine.llm_engine import LLMEngine
from pyvt.log import get_logger
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams

log = get_logger(__name__)

T = TypeVar("T")

_NUM_INPUT_THREADS = 2
# Threads that wait until grammars are compiled, which is done on others.
_NUM_GRAMMAR_WAITERS = 16


class AsyncLLM:
    """A loaded model for asyncio; its streams may live in different event loops.

    Args:
        model: folder of a checkpoint, path of a ``.gguf`` file, or a whole config.
        max_requests: most requests that are accepted and unfinished; more are refused with the
            code ``queue_full``.
        settings: fields of ``EngineConfig`` and of its parts, by name.
    """

    def __init__(
        self, model: str | Path | EngineConfig, *, max_requests: int = MAX_REQUESTS, **settings: Any
    ) -> None:
        path = str(model) if isinstance(model, Path) else model
        config = path if isinstance(path, EngineConfig) else engine_config(path, **settings)
        self._attach(build_engine(config), max_requests)

    @classmethod
    def from_engine(cls, engine: LLMEngine, *, max_requests: int = MAX_REQUESTS) -> "AsyncLLM":
        """Return one over an engine that was built elsewhere, and belongs to it from now on."""
        llm = cls.__new__(cls)
        llm._attach(engine, max_requests)
        return llm

    def _attach(self, engine: LLMEngine, max_requests: int) -> None:
        self.engine = engine
        engine.input_processor.tokenizer.encode("")  # else the first text waits for its tables
        self.thread = EngineThread(engine, max_requests=max_requests)
        self._numbers = itertools.count(1)
        self._inputs = ThreadPoolExecutor(_NUM_INPUT_THREADS, thread_name_prefix="pyvt-input")
        self._waiters = ThreadPoolExecutor(_NUM_GRAMMAR_WAITERS, thread_name_prefix="pyvt-wait")
        self._outboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Outbox] = (
            weakref.WeakKeyDictionary()
        )
        weakref.finalize(self, self.thread.shutdown, timeout_s=0)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted: false for good after a failure or a shutdown."""
        return self.thread.is_ready

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that were accepted and have not ended."""
        return self.thread.num_unfinished_requests

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        is_stream: bool = True,
        priority: int = 0,
        timeout_s: float | None = None,
        waited_s: float = 0.0,
        tenant: str = "",
        cache_salt: str | None = None,
    ) -> "RequestStream":
        """Return the stream of a request, which starts with ``start``, or with its first read.

        Args:
            prompt: text, token ids or a rendered conversation.
            sampling_params: None for the model's own defaults.
            request_id: unique among unfinished requests; None makes one.
            is_stream: outputs with what is new; False gives one output, at the end.
            priority: the lower, the sooner.
            timeout_s: seconds from now after which the request is aborted.
            waited_s: seconds of them that have passed already.
            tenant: whose KV it may share; never from the text of a request.
            cache_salt: shares KV only with requests of the same salt.
        """
        params = self.engine.default_params if sampling_params is None else sampling_params
        if request_id is None:
            request_id = f"async-{next(self._numbers)}"

        arrival_s = self.engine.core.clock()

        def process() -> EngineCoreRequest:
            return self.engine.process(
                request_id,
                prompt,
                params,
                priority=priority,
                arrival_s=arrival_s,
                timeout_s=timeout_s,
                waited_s=waited_s,
                tenant=tenant,
                cache_salt=cache_salt,
            )

        pool = self._inputs if params.structured_outputs is None else self._waiters
        return RequestStream(self, request_id, process, is_stream, pool)

    def abort(self, request_id: str) -> bool:
        """End a request soon; its stream gets a last output with the reason ``abort``.

        Returns False where the id is unknown or finished. Any thread may call it.
        """
        return self.thread.cancel(request_id)

    async def run_input(self, function: Callable[[], T]) -> T:
        """Run work on texts, such as rendering and tokenising, beside the loop."""
        return await self._run_on(self._inputs, function)

    async def _run_on(self, pool: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, function)

    async def call(self, function: Callable[[LLMEngine], T]) -> T:
        """Run a function with the engine between two steps; see ``EngineThread.call``."""
        return await asyncio.to_thread(self.thread.call, function)

    async def shutdown(self, *, is_drain: bool = False, timeout_s: float | None = None) -> bool:
        """End the engine's thread; see ``EngineThread.shutdown``. May be called again."""
        return await asyncio.to_thread(self.thread.shutdown, is_drain=is_drain, timeout_s=timeout_s)

    def _outbox(self) -> "_Outbox":
        """Return what brings events into the running loop."""
        loop = asyncio.get_running_loop()
        outbox = self._outboxes.get(loop)
        if outbox is None:
            outbox = self._outboxes[loop] = _Outbox(loop, self.thread)
        return outbox


class RequestStream:
    """The outputs of one request for one task; the last one is ``finished``.

    Closing or dropping it aborts the request where it is unfinished.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        request_id: str,
        process: Callable[[], EngineCoreRequest],
        is_stream: bool,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.request_id = request_id
        self._llm = llm
        self._process = process
        self._is_stream = is_stream
        self._pool = pool
        self._events: _Inbox | None = None
        self._is_done = False

    async def start(self) -> "RequestStream":
        """Check and queue the request; nothing where it is started. Returns itself.

        Raises:
            RequestError: the request cannot be served, or there is no room for it.
            EngineDeadError: the engine has failed or was shut down.
        """
        if self._events is None and not self._is_done:
            self._llm.thread.check_ready()
            request = await self._llm._run_on(self._pool, self._process)
            # From here on there is no await, so a cancellation cannot leave a request behind.
            if self._is_done or self._events is not None:
                return self  # closed, or started by another task, in the meantime
            events = _Inbox(self._llm._outbox(), event_bound(request), self.request_id)
            self._llm.thread.submit([request], events, is_stream=self._is_stream)
            self._events = events
        return self

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> RequestOutput:
        outputs = await self.take(1)
        if not outputs:
            raise StopAsyncIteration
        return outputs[0]

    async def take(self, most: int) -> list[RequestOutput]:
        """Wait until there is an output; return those that are there, at most so many.

        Returns nothing after the last one.

        Raises:
            RequestError: the request cannot be served, or there is no room for it.
            EngineDeadError: the engine has failed or was shut down.
        """
        if self._is_done:
            return []
        if self._events is None:
            await self.start()
            if self._events is None:
                return []  # it was closed in the meantime
        waiting = self._events.events
        if not waiting:
            await self._events.wait()
        taken: list[RequestOutput] = []
        while waiting and len(taken) < most:
            event = waiting[0]
            if not isinstance(event, RequestOutput):
                if taken:
                    break
                self._is_done = True
                raise event
            taken.append(event)
            waiting.popleft()
        self._is_done = taken[-1].finished
        return taken

    async def __aenter__(self) -> "RequestStream":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort the request where it is unfinished and read no more; may be called again."""
        if not self._is_done:
            self._is_done = True
            if self._events is not None:
                self._llm.thread.cancel(self.request_id, self._events)

    def __del__(self) -> None:
        self.close()


class _Inbox:
    """The events of one stream; the engine's thread puts, one task of the loop takes."""

    __slots__ = ("_outbox", "bound", "events", "request_id", "waiter")

    def __init__(self, outbox: "_Outbox", bound: int, request_id: str) -> None:
        self._outbox = outbox
        self.bound = bound
        self.request_id = request_id
        self.events: deque[Event] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Append an event and see that the loop wakes its reader."""
        assert len(self.events) < self.bound, "a request has more events than tokens"
        self.events.append(event)
        self._outbox.wake(self)

    async def wait(self) -> None:
        """Wait until there is an event."""
        while not self.events:
            assert self.waiter is None, "one task reads a stream"
            self.waiter = self._outbox.new_future()
            try:
                await self.waiter
            finally:
                self.waiter = None


class _Outbox:
    """Wakes the readers of one event loop, many with one call into it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: EngineThread) -> None:
        self._loop = weakref.ref(loop)
        self._thread = thread
        self._inboxes: deque[_Inbox] = deque()
        self._is_scheduled = False

    def new_future(self) -> "asyncio.Future[None]":
        """Return what a reader waits for; asking which loop runs takes a system call each time."""
        loop = self._loop()
        assert loop is not None, "a reader runs in it"
        return loop.create_future()

    def wake(self, inbox: _Inbox) -> None:
        """See that the reader of an inbox wakes up; called on the engine's thread."""
        self._inboxes.append(inbox)
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = self._loop()
        try:
            if loop is None:
                raise RuntimeError("event loop is gone")
            loop.call_soon_threadsafe(self._wake_readers)
        except RuntimeError as error:  # a closed loop: nobody can read any more
            log.warning("requests without a reader are aborted: %s", error)
            self._is_scheduled = False
            while self._inboxes:
                left = self._inboxes.popleft()
                self._thread.cancel(left.request_id, left)

    def _wake_readers(self) -> None:
        # The flag goes first: what is put from now on schedules another call.
        self._is_scheduled = False
        while self._inboxes:
            waiter = self._inboxes.popleft().waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
