"""Events of OpenAI's streams."""

import json
from typing import Any

from pyvt.errors import PyvtError, RequestError
from pyvt.log import get_logger
from pyvt.server.errors import WireError, WireException, wire_error

log = get_logger(__name__)


# A chunk is written for each token: an encoder of its own would cost more than the encoding.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dumped(value: Any) -> str:
    """Return JSON in one line, as short as it can be."""
    return _ENCODER.encode(value)


def data_event(value: Any) -> bytes:
    """Return an event without a name."""
    return f"data: {dumped(value)}\n\n".encode()


def named_event(name: str, value: Any) -> bytes:
    """Return an event with a name."""
    return f"event: {name}\ndata: {dumped(value)}\n\n".encode()


def error_event(error: PyvtError | WireException) -> bytes:
    """Return the event that ends a stream which failed after it had begun."""
    return data_event(failure(error).openai_object())


def failure(error: PyvtError | WireException) -> WireError:
    """Return what is told of a failure inside a stream; faults of ours go to the log too."""
    if not isinstance(error, (RequestError, WireException)):
        log.error("a stream failed: %s", error)
    return wire_error(error)
