"""A stream that is asked of a model that is being loaded: comments until there is an answer.

1. A load that takes no longer than a comment is waited for; the answer is as ever.
2. Behind that the stream begins, and a comment keeps it alive until the model is there.
3. The handler's answer is the rest of the stream. What it refuses has no status any more: it is an
   event with the error, in the shape of the path.
"""

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvt.errors import PyvtError
from pyvt.server.errors import wire_error
from pyvt.server.middleware import error_response, is_anthropic
from pyvt.server.openai.events import data_event, named_event
from pyvt.server.sse import COMMENT, HEADERS, disconnected
from pyvt.server.state import ServerState

_STREAM = b"text/event-stream"


async def answer_when_awake(
    state: ServerState,
    waking: "asyncio.Future[None]",
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a request that may be one for a stream once the model is loaded.

    Raises:
        PyvtError: the model cannot be loaded, and nothing of an answer was sent.
        WireException, ClientGoneError: the body is none.
    """
    interval_s = state.config.keep_alive_interval_s
    done, _ = await asyncio.wait({waking}, timeout=interval_s)
    if not done:
        body = await state.body(Request(scope, receive, send))
        if body.get("stream") is True:
            await _stream(waking, interval_s, app, scope, receive, send)
            return
    await asyncio.shield(waking)
    await app(scope, receive, send)


async def _stream(
    waking: "asyncio.Future[None]",
    interval_s: float,
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS]})
    left = asyncio.ensure_future(disconnected(receive))
    try:
        while not waking.done():
            await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            await asyncio.wait({waking, left}, timeout=interval_s, return_when="FIRST_COMPLETED")
            if left.done():
                return
    finally:
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    rest = _Rest(scope["path"], send)
    try:
        await asyncio.shield(waking)
    except PyvtError as error:
        app = error_response(wire_error(error), scope["path"])
    await app(scope, receive, rest)


class _Rest:
    """Sends an answer as the rest of a stream that has begun."""

    def __init__(self, path: str, send: Send) -> None:
        self._path = path
        self._send = send
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
                event = _event(self._path, json.loads(self._body))
                await self._send({"type": "http.response.body", "body": event, "more_body": False})


def _event(path: str, refusal: dict[str, Any]) -> bytes:
    """Return the event of an error that a path's clients know."""
    if is_anthropic(path):
        return named_event("error", refusal)
    if path == "/v1/responses":
        return named_event("error", {"type": "error", "sequence_number": 0, **refusal["error"]})
    return data_event(refusal)
