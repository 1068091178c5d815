"""Answers that take time: streams of events, and single answers whose client may leave.

A stream is written by one task and watched by another, so a token costs no timer:

1. The writer takes chunks as they come; a slow client makes it wait, and what waits is bounded by
   the request's own tokens.
2. The watcher ends the writer when the client leaves or leaves the stream unread for too long, and
   writes a comment after each span of silence.

Ending the writer closes its source, which aborts the request in the engine.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from time import monotonic
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from pyvt.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")

# Chunks that one stream may send before it is another's turn.
_TURN = 4

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGoneError(Exception):
    """The client left before it had its answer."""


class EventStream:
    """A response that streams chunks of bytes, each of whole events.

    Args:
        chunks: closed when the stream ends, however it ends.
        keep_alive_s: seconds of silence before a comment.
        stall_s: seconds that one chunk may take to be sent.
        headers: more headers.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        keep_alive_s: float,
        stall_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._chunks = chunks
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._headers = [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
        self._sent_s = 0.0
        self._is_sending = False
        self._is_open = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        headers = [*HEADERS, *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_s = monotonic()
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(self._watch(receive, send, writer))
        try:
            await asyncio.wait({writer})
        finally:
            writer.cancel()
            watcher.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)
        if not writer.cancelled() and writer.exception() is not None:
            raise writer.exception() or AssertionError("a failed writer has an error")

    async def _write(self, send: Send) -> None:
        try:
            num_sent = 0
            async for chunk in self._chunks:
                self._is_sending = True
                self._sent_s = monotonic()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self._is_sending = False
                num_sent += 1
                if num_sent % _TURN == 0:
                    # With chunks waiting nothing above suspends: let the loop serve the others,
                    # and hear of a client that left.
                    await asyncio.sleep(0)
            self._is_open = False
            await self._send(send, b"", has_more=False)
        finally:
            self._is_open = False
            aclose = getattr(self._chunks, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _send(self, send: Send, body: bytes, *, has_more: bool) -> None:
        self._is_sending = True
        self._sent_s = monotonic()
        try:
            await send({"type": "http.response.body", "body": body, "more_body": has_more})
        finally:
            self._is_sending = False
            self._sent_s = monotonic()

    async def _watch(self, receive: Receive, send: Send, writer: "asyncio.Future[None]") -> None:
        left = asyncio.ensure_future(disconnected(receive))
        try:
            while True:
                silent_s = monotonic() - self._sent_s
                wait_s = self._stall_s - silent_s
                if not self._is_sending:
                    # A chunk may get stuck any time now.
                    wait_s = min(self._keep_alive_s - silent_s, self._stall_s)
                done, _ = await asyncio.wait({left}, timeout=max(wait_s, 0.01))
                silent_s = monotonic() - self._sent_s
                if done:
                    break
                if self._is_sending and silent_s >= self._stall_s:
                    log.warning("a stream was left unread for %.0f s and is ended", silent_s)
                    break
                if not self._is_sending and silent_s >= self._keep_alive_s and self._is_open:
                    await asyncio.wait_for(self._send(send, COMMENT, has_more=True), self._stall_s)
        except TimeoutError:
            log.warning("a stream was left unread for %.0f s and is ended", self._stall_s)
        finally:
            writer.cancel()
            left.cancel()


async def until_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; cancel it when the client leaves.

    Raises ClientGoneError then.
    """
    working = asyncio.ensure_future(work)
    left = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, left):
            task.cancel()
        await asyncio.gather(working, left, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
