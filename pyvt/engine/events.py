"""Events of requests on their way from the engine's thread to whoever waits for them.

An event is a ``RequestOutput``, or the error that ended the request without one. Each accepted
request gets exactly one terminal event, and it is the last: a finished output, or an error.
"""

from queue import Empty, SimpleQueue
from typing import Protocol

from pyvt.errors import PyvtError
from pyvt.messages import EngineCoreRequest
from pyvt.outputs import RequestOutput

Event = RequestOutput | PyvtError

# A Ctrl-C that comes just before a wait begins is seen when the wait ends, so waits are short.
_WAIT_S = 0.1


class Sink(Protocol):
    """Where the engine's thread puts the events of one request, or of several."""

    def put(self, event: Event) -> None:
        """Take an event; called on the engine's thread, must neither block nor raise."""
        ...


def event_bound(request: EngineCoreRequest) -> int:
    """Return the most events that a streamed request can have: its tokens and a terminal one."""
    params = request.sampling_params
    assert params.max_tokens is not None, "the input processor resolves max_tokens"
    return params.n * (params.max_tokens + 1)


def take_event(events: SimpleQueue[Event]) -> Event:
    """Wait for the next event and take it. Ctrl-C in the main thread interrupts the wait."""
    while True:
        try:
            return events.get(timeout=_WAIT_S)
        except Empty:
            continue


class EventChannel:
    """The events of one streamed request, one writer and one reader, bounded by its tokens.

    The bound is what the request can have at all, so the writer never waits for a slow reader and
    nothing is dropped.
    """

    __slots__ = ("_events", "bound")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._events: SimpleQueue[Event] = SimpleQueue()

    def __len__(self) -> int:
        return self._events.qsize()

    def put(self, event: Event) -> None:
        """Append an event."""
        assert self._events.qsize() < self.bound, "a request has more events than tokens"
        self._events.put(event)

    def get(self) -> Event:
        """Wait for the next event and take it. Ctrl-C in the main thread interrupts the wait."""
        return take_event(self._events)
