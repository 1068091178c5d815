"""A stream that is asked of a model that is being loaded: comments until there is an answer.

1. A load that takes no longer than a comment is waited for; the answer is as ever.
2. Behind that the stream begins, and a comment keeps it alive until the model is there.
3. The handler's answer is the rest of the stream. What it refuses has no status any more: it is an
   event with the error, in the shape of the path.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvt.errors import PyvtError
from pyvt.server.errors import wire_error
from pyvt.server.middleware import error_response
from pyvt.server.sse import COMMENT, HEADERS, disconnected
from pyvt.server.state import ServerState

_STREAM = b"text/event-stream"
RefusalEvent = Callable[[Mapping[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class AnswerWhenAwake:
    """Answers a request that may be one for a stream once the model is loaded.

    Attributes:
        waking: the load.
        app: the answer.
        refusal_event: the event of a refusal's body, inside a stream.
    """

    state: ServerState
    waking: "asyncio.Future[None]"
    app: ASGIApp
    refusal_event: RefusalEvent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, and answer.

        Raises:
            PyvtError: the model cannot be loaded, or not before the deadline, and nothing of an
                answer was sent.
            WireException, ClientGoneError: the body is none.
        """
        interval_s = self.state.config.keep_alive_interval_s
        async with self.state.before_deadline(scope):
            done, _ = await asyncio.wait({self.waking}, timeout=interval_s)
            body = {} if done else await self.state.body(Request(scope, receive, send))
            is_stream = body.get("stream") is True
            if not is_stream:
                await asyncio.shield(self.waking)
        await (self._stream if is_stream else self.app)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
        app = self.app
        try:
            async with self.state.before_deadline(scope):
                if not await self._comment(receive, send):
                    return
                await asyncio.shield(self.waking)
        except PyvtError as error:
            app = error_response(wire_error(error), scope["path"])
        await app(scope, receive, _Rest(send, self.refusal_event))

    async def _comment(self, receive: Receive, send: Send) -> bool:
        """Send comments until the load has ended; return False where the client left before."""
        interval_s = self.state.config.keep_alive_interval_s
        left = asyncio.ensure_future(disconnected(receive))
        try:
            while not self.waking.done():
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                waited_for = {self.waking, left}
                await asyncio.wait(waited_for, timeout=interval_s, return_when="FIRST_COMPLETED")
                if left.done():
                    return False
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        return True


class _Rest:
    """Sends an answer as the rest of a stream that has begun."""

    def __init__(self, send: Send, refusal_event: RefusalEvent) -> None:
        self._send = send
        self._refusal_event = refusal_event
        self._is_stream = False
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(_STREAM)
        elif self._is_stream:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                event = self._refusal_event(json.loads(self._body))
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
