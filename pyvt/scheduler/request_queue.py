"""RequestQueue: requests in their order, which is total and never changes.

A request's order is its priority, 0 for all under ``fcfs``, and its arrival. So a preempted request
goes back to where it was, before all that came after it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from pyvt.scheduler.request import Request


def _order(request: Request) -> tuple[int, int]:
    return request.order


class RequestQueue:
    """Requests sorted by ``order``."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Iterate over a snapshot, so that the queue may change meanwhile."""
        return iter(tuple(self._requests))

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        insort(self._requests, request, key=_order)

    def remove(self, request: Request) -> None:
        """Take out a request; it must be in the queue."""
        index = bisect_left(self._requests, request.order, key=_order)
        assert self._requests[index] is request, f"{request.request_id} is not in the queue"
        del self._requests[index]
