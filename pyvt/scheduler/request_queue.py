"""The queue of waiting requests: first come, first served."""

from collections import deque
from collections.abc import Iterator

from pyvt.scheduler.request import Request


class FCFSQueue:
    """Waiting requests in the order of arrival; a preempted request goes back to the front."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Append a request that arrived."""
        self._requests.append(request)

    def add_front(self, request: Request) -> None:
        """Put back a preempted request; it arrived before all that wait.

        Of several, the youngest is put back first.
        """
        self._requests.appendleft(request)

    def peek(self) -> Request:
        """Return the request whose turn it is; the queue must not be empty."""
        return self._requests[0]

    def pop(self) -> Request:
        """Take the request whose turn it is; the queue must not be empty."""
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        """Take out a request that was aborted; it must be in the queue."""
        self._requests.remove(request)
