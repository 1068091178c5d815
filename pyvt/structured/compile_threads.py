"""A few threads that compile, of which none can be kept from its work by a job that never ends.

The libraries that compile have bounds of their own, and no thread of Python can be ended. Should a
job hang all the same, whoever waits gives it up, and another thread takes the place of the one that
is lost with it. The threads never keep the program from ending.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

# Threads that may be lost at a time; when there are more, jobs wait until their callers give up.
MAX_LOST = 8


_HAS_CLOCKS = hasattr(time, "pthread_getcpuclockid")
# A job that has used none of its time for so many times its limit hangs, or waits behind one.
_WALL_FACTOR = 6.0


class Job:
    """A call that some thread makes."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.result: Future[Any] = Future()
        self.is_given_up = False
        self._call = function, args
        self._clock: int | None = None
        self._start_s = 0.0

    def wait(self, timeout_s: float) -> Any:
        """Return the call's result, which may take so many seconds of CPU, and some more to wait.

        A machine that is busy with other things, or was asleep, is not the call's fault.

        Raises:
            TimeoutError: it takes longer.
        """
        wall_s = timeout_s * (_WALL_FACTOR if _HAS_CLOCKS else 1.0)
        end_s = time.monotonic() + wall_s
        while True:
            left_s = min(timeout_s - self._cpu_s(), end_s - time.monotonic())
            try:
                return self.result.result(max(left_s, 0.0))
            except TimeoutError:
                if self.result.done():
                    raise
            if left_s <= 0:
                raise TimeoutError

    def _cpu_s(self) -> float:
        """Return the CPU time of the call while it runs; none where that cannot be told."""
        if self._clock is None or self.result.done():
            return 0.0
        try:
            return time.clock_gettime(self._clock) - self._start_s
        except OSError:  # the thread has ended
            return 0.0

    def run(self) -> None:
        """Make the call, unless it was given up before it began."""
        if not self.result.set_running_or_notify_cancel():
            return
        if _HAS_CLOCKS:
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._start_s = time.clock_gettime(clock)
            self._clock = clock
        function, args = self._call
        try:
            self.result.set_result(function(*args))
        except BaseException as error:
            self.result.set_exception(error)


class CompileThreads:
    """Runs jobs in the order in which they come; every method may be called by any thread."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_lost = 0
        for _ in range(num_threads):
            self._start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Job:
        """Queue a call."""
        job = Job(function, args)
        self._jobs.put(job)
        return job

    def give_up(self, job: Job) -> None:
        """Wait no longer for a job: it never begins, or another thread serves those behind it."""
        if job.result.cancel():
            return
        with self._lock:
            if job.is_given_up or job.result.done() or self._num_lost == MAX_LOST:
                return
            job.is_given_up = True
            self._num_lost += 1
        self._start()

    def close(self) -> None:
        """End the threads when they are done with what they do; jobs in the queue never begin."""
        for _ in range(self._num_threads):
            self._jobs.put(None)

    def _start(self) -> None:
        self._num_threads += 1
        name = f"{self._name}-{self._num_threads}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            with self._lock:
                if job.is_given_up:
                    self._num_lost -= 1
                    return  # another thread has taken this one's place
            del job  # else it and all that it made live on while nothing comes
