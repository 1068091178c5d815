"""Errors on the wire: one table from what went wrong to a status and a body.

1. Clients look at the HTTP status first; ``code`` is a string or null, never a number.
2. A text has no path, no traceback and nothing of the request's body beyond a short value.
3. An error that comes again for the same request says ``x-should-retry: false``: SDKs repeat every
   5xx twice.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyvt.errors import EngineDeadError, RequestError

MAX_MESSAGE_CHARS = 2000
# Places in lists of a field's path.
_PLACE = re.compile(r"(\[\d+\])+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireError:
    """An answer that says what went wrong.

    Attributes:
        status: of HTTP.
        message: for people.
        type: OpenAI's word for the kind.
        code: a word for programs.
        param: the field of the request that is to blame.
        headers: more headers.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def openai_object(self) -> dict[str, Any]:
        """Return OpenAI's object, which stands in bodies and in streams."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def anthropic_object(self) -> dict[str, Any]:
        """Return Anthropic's object."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class WireException(Exception):
    """Carries a ``WireError`` from where it is noticed to where answers are sent."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.message)
        self.error = error


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}

# Codes of RequestError that are not a 400: status, type and headers.
_BY_CODE: Mapping[str, tuple[int, str, Mapping[str, str]]] = {
    "model_not_found": (404, "invalid_request_error", {}),
    "not_found": (404, "invalid_request_error", {}),
    "method_not_allowed": (405, "invalid_request_error", {}),
    "body_too_large": (413, "invalid_request_error", {}),
    "body_timeout": (408, "invalid_request_error", {}),
    "head_too_large": (431, "invalid_request_error", {}),
    "unsupported_media_type": (415, "invalid_request_error", {}),
    "host_not_allowed": (403, "invalid_request_error", {}),
    "invalid_api_key": (401, "invalid_request_error", {"www-authenticate": "Bearer"}),
    "queue_full": (429, "rate_limit_error", {"retry-after": "1"}),
    "loading": (503, "service_unavailable", {"retry-after": "5"}),
    "draining": (503, "service_unavailable", {"retry-after": "5"}),
    # An SDK that repeats it would undo the abort.
    "aborted": (503, "service_unavailable", {"x-should-retry": "false"}),
    "deadline_exceeded": (504, "timeout_error", {"x-should-retry": "false"}),
}


def request_error(
    message: str, *, param: str | None = None, code: str | None = None
) -> WireException:
    """Return what a handler raises for a request that it refuses."""
    return WireException(wire_error(RequestError(message, param=param, code=code)))


def wire_error(error: BaseException) -> WireError:
    """Return the answer for an exception; one that is no ``PyvtError`` says nothing of itself."""
    match error:
        case WireException():
            return error.error
        case RequestError():
            status, kind, headers = _BY_CODE.get(
                error.code or "", (400, "invalid_request_error", {})
            )
            message = str(error)
            if len(message) > MAX_MESSAGE_CHARS:
                message = f"{message[:MAX_MESSAGE_CHARS]}…"
            return WireError(
                status=status,
                message=message,
                type=kind,
                code=error.code,
                param=error.param,
                headers=headers,
            )
        case EngineDeadError():
            return server_error("the engine has stopped; the server must be restarted")
        case _:
            return server_error("internal error; the server's log tells more")


def renamed(
    error: RequestError | WireException, names: Mapping[str, str]
) -> RequestError | WireException:
    """Return an error that calls a field by its name in the client's request.

    Args:
        error: of the engine, or of the chat that a request was translated into.
        names: name there → name in the request, without places in lists; the longest counts that
            begins the field's path. A text may have a longer path than the field.
    """
    param, text = error.error.param if isinstance(error, WireException) else error.param, str(error)
    if param is None:
        return error
    param = next((path for path in names if path.startswith(f"{param}.") and path in text), param)
    plain = f"{_PLACE.sub('', param)}."
    path = max((path for path in names if plain.startswith(f"{path}.")), key=len, default=None)
    if path is None:
        return error
    parts = param.split(".")
    first, *more = names[path].split(".")
    place = _PLACE.search(parts[0])
    first += "" if place is None else place[0]
    name = ".".join([first, *more, *parts[path.count(".") + 1 :]])
    told = text.replace(param, name, 1)
    if isinstance(error, WireException):
        return WireException(replace(error.error, message=told, param=name))
    return RequestError(told, param=name, code=error.code)


def server_error(message: str) -> WireError:
    """Return the answer for a fault of ours, which a client should not try again."""
    return WireError(
        status=500,
        message=f"[server] request: {message}",
        type="server_error",
        code="internal_error",
        headers={"x-should-retry": "false"},
    )


def body_of(value: Any) -> bytes:
    """Return the JSON of a body, with a line end for people with curl."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
