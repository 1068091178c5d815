"""A server of OpenAI's API as a client sees it: HTTP/1.1 over asyncio, a connection a request."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pyvt.errors import RequestError, ServerError

# Most bytes of a line, and of an answer that is not streamed.
MAX_BYTES = 16 << 20
_DONE = "[DONE]"
# A TLS connection may wait for the other side to say that it ends.
_CLOSING_S = 1.0


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where a server is, and the key that it wants.

    Attributes:
        url: of the API, with or without ``/v1`` at its end.
        key: sent as a bearer token where it is not empty.
        timeout_s: how long the server may say nothing at all.
    """

    url: str
    key: str = ""
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(
                f"[url] expected http://HOST:PORT or https://HOST, got {self.url[:200]!r}"
            )

    async def get(self, path: str) -> Any:
        """Return the JSON of a GET; ``path`` goes on behind ``/v1``."""
        async with self._answer("GET", path, None) as lines:
            return json.loads("".join([line async for line in lines]))

    async def model(self) -> str:
        """Return the name of the first model that is served."""
        models = (await self.get("/models")).get("data") or []
        if not models:
            raise ServerError(f"[url] {self.url}: expected a model that is served, got none")
        return str(models[0]["id"])

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the JSON of each event of a stream.

        Raises:
            ServerError: the request is refused, or the stream breaks off.
        """
        async with self._answer("POST", path, body) as lines:
            async for line in lines:
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == _DONE:
                    return
                event = json.loads(data)
                if isinstance(event, dict) and event.get("error"):
                    raise ServerError(f"[server] {_message(event)}")
                yield event
        raise ServerError("[server] expected a stream up to its end, got one that breaks off")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Send a request; yields the lines of the answer's body."""
        parts = urlsplit(self.url)
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        base = parts.path.rstrip("/").removesuffix("/v1")
        data = b"" if body is None else json.dumps(body).encode()
        head = [
            f"{method} {base}/v1{path} HTTP/1.1",
            f"host: {parts.netloc.rpartition('@')[2]}",
            "accept: application/json, text/event-stream",
            "content-type: application/json",
            f"content-length: {len(data)}",
            "connection: close",
            *((f"authorization: Bearer {self.key}",) if self.key else ()),
        ]
        context = ssl.create_default_context() if is_tls else None
        try:
            async with asyncio.timeout(self.timeout_s):
                reader, writer = await asyncio.open_connection(
                    parts.hostname, port, ssl=context, limit=MAX_BYTES
                )
        except (OSError, TimeoutError) as error:
            raise ServerError(f"[url] {self.url}: {_no_connection(error)}") from error
        try:
            writer.write("\r\n".join([*head, "", ""]).encode() + data)
            await writer.drain()
            status, headers = await self._head(reader)
            lines = _lines(_body(reader, headers, self.timeout_s))
            if status != 200:
                text = "".join([line async for line in lines])
                raise ServerError(f"[server] {status}: {_message(text)}")
            yield lines
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise ServerError(
                f"[url] {self.url}: the answer broke off: {_why(error)}; see whether the server "
                "still runs, and what it says"
            ) from error
        finally:
            writer.close()
            # A loop that ends at once would leave the socket to the collector.
            with suppress(OSError):
                async with asyncio.timeout(_CLOSING_S):
                    await writer.wait_closed()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(self.timeout_s):
            first = (await reader.readline()).decode("latin-1").split(" ", 2)
            headers = {}
            while line := (await reader.readline()).decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        if len(first) < 2 or not first[1].isdigit():
            raise ValueError("no HTTP; https:// is for servers with TLS, http:// for others")
        return int(first[1]), headers


async def _body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], timeout_s: float
) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while True:
            async with asyncio.timeout(timeout_s):
                size = await _chunk_size(reader)
                part = await reader.readexactly(size + 2)
            if not size:
                return
            yield part[:-2]
    left = int(headers.get("content-length", MAX_BYTES))
    while left > 0:
        async with asyncio.timeout(timeout_s):
            part = await reader.read(min(left, 1 << 16))
        if not part:
            return
        left -= len(part)
        yield part


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    if not line:
        raise asyncio.IncompleteReadError(line, None)
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise ValueError("a chunk without a length") from error


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield lines without their ends; the last one may lack one."""
    held = b""
    async for part in parts:
        *lines, held = (held + part).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").removesuffix("\r")
        if len(held) > MAX_BYTES:
            raise ValueError("a line without an end")
    if held:
        yield held.decode("utf-8", "replace")


def _no_connection(error: Exception) -> str:
    """Return why there is no connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"expected a certificate that is trusted, got {error.verify_message}; SSL_CERT_FILE "
            "names a file of those that are"
        )
    if isinstance(error, ssl.SSLError):
        why = (error.reason or "no TLS").replace("_", " ").lower()
        return f"expected a server with TLS, got {why}; http:// is for one without"
    return f"expected a server, got {_why(error)}; start one with `pyvt serve` or give its --url"


def _why(error: Exception) -> str:
    """Return why nothing more came, in words."""
    if isinstance(error, asyncio.IncompleteReadError | ConnectionResetError):
        return "the connection was closed"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number).lower()
    return str(error) or "no answer in time"


def _message(answer: str | Mapping[str, Any]) -> str:
    """Return what an error says, of the forms that servers have for it."""
    try:
        body = json.loads(answer) if isinstance(answer, str) else answer
    except ValueError:
        return str(answer)[:500]
    error = body.get("error", body) if isinstance(body, Mapping) else body
    message = error.get("message", error) if isinstance(error, Mapping) else error
    return str(message)[:2000]
