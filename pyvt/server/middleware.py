"""What every request passes: id and log, host, origin, key. Pure ASGI, so streams stay streams.

1. ``RequestLog``: an ``x-request-id`` in and out, one JSON line a request, errors as JSON.
2. ``HostCheck``: a web page that made its own name point here (DNS rebinding) is refused; not over
   a Unix socket.
3. ``Cors``: pages of localhost, and of the origins that are allowed, may read answers.
4. ``KeyCheck``: every path but ``PUBLIC_PATHS`` needs a key where the server has keys.
"""

import hashlib
import hmac
import ipaddress
import json
import re
import sys
import time
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyvt.errors import RequestError
from pyvt.log import get_logger
from pyvt.server.errors import WireError, body_of, wire_error

log = get_logger(__name__)

PUBLIC_PATHS = frozenset({"/", "/health", "/version"})
# Asked every few seconds by machines: only a failure is worth a line.
PROBE_PATHS = frozenset({"/health", "/ready", "/metrics"})
_REQUEST_ID = re.compile(r"[\w.\-]{1,64}", re.ASCII)
_METHODS = "GET, POST, OPTIONS"


def is_anthropic(path: str) -> bool:
    """Return whether a path's clients expect Anthropic's errors."""
    return path.startswith("/v1/messages")


def error_response(error: WireError, path: str) -> Response:
    """Return the answer for an error, in the shape that clients of the path know."""
    body = error.anthropic_object() if is_anthropic(path) else error.openai_object()
    return Response(
        body_of(body), error.status, headers=dict(error.headers), media_type="application/json"
    )


class RequestLog:
    """Gives each request an id, answers what nobody caught, and writes the access log.

    The log has no prompts, no answers and no keys. In ``scope["state"]`` are the id,
    ``request_id``, and ``arrival_s``, when the head came, on the monotonic clock.
    """

    def __init__(self, app: ASGIApp, *, is_logging: bool) -> None:
        self.app = app
        self.is_logging = is_logging
        self._in_use: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        # Requests of one trace may share an id; the engine's must be of one request.
        own_id = (
            request_id if request_id not in self._in_use else f"{request_id}-{uuid.uuid4().hex}"
        )
        self._in_use.add(own_id)
        kept = scope.setdefault("state", {})
        kept["request_id"], kept["arrival_s"] = own_id, time.monotonic()
        start_s = time.perf_counter()
        status = 0
        num_bytes = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            else:
                num_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("request %s failed", request_id)
            if status == 0:
                answer = error_response(wire_error(error), scope["path"])
                await answer(scope, receive, send_with_id)
        finally:
            self._in_use.discard(own_id)
            is_probe = scope["path"] in PROBE_PATHS and status in (200, 503)
            if self.is_logging and not is_probe:
                _write_line(scope, request_id, status, num_bytes, time.perf_counter() - start_s)


def _write_line(scope: Scope, request_id: str, status: int, num_bytes: int, seconds: float) -> None:
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "request_id": request_id,
        "method": scope["method"],
        "path": scope["path"][:200],
        # 499 is nginx's word for a client that left before the answer.
        "status": status or 499,
        "bytes": num_bytes,
        "ms": round(seconds * 1000, 1),
    }
    sys.stderr.write(json.dumps(line, ensure_ascii=True) + "\n")


class HostCheck:
    """Refuses names in ``Host`` that nobody gave to this server.

    Addresses pass: a browser that was tricked by DNS sends the name. So do ``localhost`` and the
    names that are allowed.
    """

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self.app = app
        self.allowed = {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(Headers(scope=scope).getlist("host")):
            error = RequestError(
                "[server] host: expected localhost, an address or an allowed name; start the "
                "server with --allowed-hosts NAME",
                code="host_not_allowed",
            )
            await error_response(wire_error(error), scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _is_allowed(self, hosts: Sequence[str]) -> bool:
        if len(hosts) != 1:  # HTTP/1.0 has none
            return not hosts
        name = _host_name(f"//{hosts[0]}")
        return name is not None and (is_local(name) or _is_address(name) or name in self.allowed)


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_local(name: str) -> bool:
    """Return whether a host name always means this machine."""
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Cors:
    """Answers preflights and marks answers for pages of allowed origins; others get no mark."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self.app = app
        self.allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None or not self._is_allowed(origin):
            await self.app(scope, receive, send)
            return
        marks = {"access-control-allow-origin": origin, "vary": "origin"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            asked = headers.get("access-control-request-headers", "")
            preflight = {
                **marks,
                "access-control-allow-methods": _METHODS,
                "access-control-allow-headers": asked or "authorization, content-type",
                "access-control-max-age": "600",
            }
            await Response(status_code=204, headers=preflight)(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in marks.items():
                    found[name] = value
                found["access-control-expose-headers"] = "x-request-id"
            await send(message)

        await self.app(scope, receive, send_marked)

    def _is_allowed(self, origin: str) -> bool:
        if "*" in self.allowed or origin in self.allowed:
            return True
        name = _host_name(origin)
        return name is not None and is_local(name)


class KeyCheck:
    """Asks for a key: ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

    All keys are compared in full, by digest, so the time tells nothing.
    ``scope["state"]["key_salt"]`` is a text of the key that was used, for the prefix cache.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._digests:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if any(matches):
            scope.setdefault("state", {})["key_salt"] = digest.hex()[:16]
        elif scope["path"] not in PUBLIC_PATHS:
            got = "a wrong one" if given else "none"
            error = RequestError(
                f"[server] api key: expected one in 'Authorization: Bearer KEY', got {got}",
                code="invalid_api_key",
            )
            await error_response(wire_error(error), scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)
