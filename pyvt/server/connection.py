"""A connection of HTTP/1.1: uvicorn's, with bounds for what comes before a request's body.

1. The line and the headers of a request are at most ``MAX_HEAD_BYTES`` long: 431.
2. They must come within ``HEAD_S`` of the connection, or of their first byte: the connection ends.
3. What is no HTTP is a 400 with the API's error, as everything that is refused. What the client
   still sends is read for ``LINGER_S``, else the system would throw the answer away with it.
   Behind an answer that has begun there is no place for it: the connection ends.
4. A client that has ended its side is mostly gone; one that only has nothing more to say looks the
   same. So answers that are there within ``HALF_CLOSED_S`` are sent, and then it has left.
5. An offer of another protocol, such as HTTP/2 without TLS, is not taken: the request is answered.
6. HTTP/1.0 has no chunks: an answer of unknown length ends with the connection.
7. An answer that is given up before its end ends the connection at once; who did it says why.

Bodies have the bounds of ``body``.
"""

import asyncio
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pyvt.errors import RequestError
from pyvt.server.errors import body_of, wire_error

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 75.0
LINGER_S = 2.0
HALF_CLOSED_S = 0.3
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class _HeadTooLargeError(Exception):
    """Ends the parsing of a request."""


class _WithoutChunks:
    """Sends an answer; one of unknown length is written as it is and ends with the connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._has_length = False

    async def __call__(self, message: Message) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message["headers"]]
            self._has_length = b"content-length" in names
            cycle.chunked_encoding = None if self._has_length else False
        elif not self._has_length:
            # The only length that uvicorn then checks.
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]


class Connection(HttpToolsProtocol):
    """One connection; uvicorn makes one for each client."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._num_head_bytes = 0
        self._is_in_head = True
        self._refusal = RequestError("[server] request: expected HTTP/1.1, got something else")
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        # Whether the parser stops behind the head, for the client offers another protocol.
        self._is_offer = False
        # Requests that came on this connection and have no whole answer yet, the first one first.
        self._unanswered: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, self._end_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._give_up_requests()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Let an answer come that is nearly there, to a client that sends no more."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_tls = self.transport.get_extra_info("ssl_object") is not None
        if self._is_refused or is_tls or not is_answering:
            return None
        self.cycle.keep_alive = False
        self._end_timer = self.loop.call_later(HALF_CLOSED_S, self.transport.close)
        return True

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request, or of several."""
        if self._is_refused:
            return
        if self._is_in_head:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_S, self._end_late_head)
            self._num_head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._is_in_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        """Take a request whose headers have come."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
            raise _HeadTooLargeError
        self._is_offer = any(name == b"upgrade" for name, _ in self.headers)
        self._is_offer = self._is_offer and self.parser.should_upgrade()
        if self._is_offer:
            return
        self._stop_timer()
        self._is_in_head = False
        super().on_headers_complete()
        waiting = [cycle for cycle in self._unanswered if not cycle.response_complete]
        self._unanswered = [*waiting, self.cycle]

    def on_message_complete(self) -> None:
        """Begin to wait for the head of the next request."""
        if self._is_offer:
            return
        self._is_in_head = True
        self._num_head_bytes = 0
        super().on_message_complete()

    @property
    def is_answering(self) -> bool:
        """Whether a whole request has no whole answer yet, or the client has not read it."""
        waiting = [cycle for cycle in self._unanswered if not cycle.response_complete]
        is_made = any(cycle.response_started or not cycle.more_body for cycle in waiting)
        return is_made or self.transport.get_write_buffer_size() > 0

    def end(self) -> None:
        """End the connection at once, whatever it waits for."""
        self._give_up_requests()
        self.transport.abort()

    def shutdown(self) -> None:
        """End the connection as the server ends: behind an answer, else at once."""
        if self.is_answering:
            super().shutdown()
        else:
            self.end()

    def send_400_response(self, msg: str) -> None:
        """Refuse what came, and end the connection."""
        if self.transport.is_closing() or self._is_refused:
            return
        self._is_refused = True
        if self._give_up_requests():
            self.transport.close()
            return
        error = wire_error(self._refusal)
        body = body_of(error.openai_object())
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\n"
            "content-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._end_timer = self.loop.call_later(LINGER_S, self.transport.close)
        else:  # TLS
            self.transport.close()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            if self._is_offer:
                self._parse_without_offer(data[stop.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _parse_without_offer(self, rest: bytes) -> None:
        """Parse a head again without its offer, and what has come behind it."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        head = b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, lines)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._parse(head + rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["http_version"] == "1.0":
                send = _WithoutChunks(cycle)
            await app(scope, receive, send)
            if cycle.response_started and not cycle.response_complete:
                self.end()

        super()._start_asgi_task(cycle, answer)  # type: ignore[arg-type]

    def _give_up_requests(self) -> bool:
        """End all requests as if the client had left; return whether an answer had begun."""
        waiting = [cycle for cycle in self._unanswered if not cycle.response_complete]
        for cycle in waiting:
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered = []
        self.pipeline.clear()
        return any(cycle.response_started for cycle in waiting)

    def _refuse_head(self) -> None:
        self._refusal = RequestError(
            f"[server] headers: expected at most {MAX_HEAD_BYTES} bytes", code="head_too_large"
        )

    def _end_late_head(self) -> None:
        """End a connection whose next request does not come; one that gets an answer goes on."""
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
