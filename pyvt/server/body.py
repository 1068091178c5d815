"""Bodies of requests: read within limits, parsed strictly.

1. ``content-type`` must be JSON and the body not compressed: 415.
2. At most so many bytes are read: 413. They may pause for so many seconds: 408.
3. UTF-8 without lone surrogates, no NaN, no infinity, no name twice in an object, at most so many
   levels, values and names in an object: 400. A long body is parsed beside the loop.
"""

import asyncio
import json
import math
import re
from collections import Counter
from typing import Any

from starlette.requests import ClientDisconnect, Request

from pyvt.server.errors import WireException, request_error
from pyvt.server.sse import ClientGoneError

MAX_VALUES = 1_000_000
MAX_NESTED = 65_536
# More are neither a bias of tokens nor a schema.
MAX_NAMES = 32_768
_SMALL_BYTES = 1 << 16
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_json(
    request: Request, *, max_bytes: int, max_depth: int, stall_s: float
) -> dict[str, Any]:
    """Return the object that a request's body is.

    Raises:
        WireException: it is none, or it is beyond a limit.
        ClientGoneError: the client left before it was whole.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise request_error(
            f"[body] content-type: expected 'application/json', got {kind[:80]!r}",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise request_error(
            f"[body] content-encoding: expected none, got {encoding[:80]!r}",
            code="unsupported_media_type",
        )
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(stall_s) as limit:
            async for part in request.stream():
                limit.reschedule(asyncio.get_running_loop().time() + stall_s)
                data += part
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise request_error(
            f"[body] data: expected more within {stall_s:g} seconds, got {len(data)} bytes",
            code="body_timeout",
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    if len(data) <= _SMALL_BYTES:
        return parse_object(bytes(data), max_depth=max_depth)
    return await asyncio.to_thread(parse_object, bytes(data), max_depth=max_depth)


def parse_object(data: bytes, *, max_depth: int) -> dict[str, Any]:
    """Return the object of JSON bytes; raises WireException for anything else."""
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise request_error(
            f"[body] text: expected UTF-8, got byte {error.start} of none"
        ) from None
    except json.JSONDecodeError as error:
        raise request_error(
            f"[body] json: expected valid JSON, got {error.msg} at character {error.pos}"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:  # a number with thousands of digits
        raise request_error("[body] json: expected numbers of a usual length") from None
    if not isinstance(value, dict):
        raise request_error(f"[body] json: expected an object, got {_kind(value)}")
    _check_values(value, max_depth=max_depth, is_escaped=_SURROGATE.search(text) is not None)
    return value


def _check_values(value: dict[str, Any], *, max_depth: int, is_escaped: bool) -> None:
    """Check levels, number and, where characters are escaped, texts of all values below one.

    Level by level, for most of a long list is no list: what others wait for must not take long.
    """
    level: list[dict[str, Any] | list[Any]] = [value]
    depth, num_values, num_nested = 1, 0, 0
    while level:
        inner: list[dict[str, Any] | list[Any]] = []
        for item in level:
            num_values += len(item)
            if item and depth >= max_depth:
                raise _too_deep(max_depth)
            if num_values > MAX_VALUES:
                raise request_error(f"[body] json: expected at most {MAX_VALUES} values")
            parts = item if isinstance(item, list) else item.values()
            inner += [part for part in parts if isinstance(part, (dict, list))]
            if is_escaped:
                _check_unicode(item)
        num_nested += len(inner)
        if num_nested > MAX_NESTED:
            raise request_error(f"[body] json: expected at most {MAX_NESTED} objects and arrays")
        level, depth = inner, depth + 1


def _check_unicode(item: dict[str, Any] | list[Any]) -> None:
    parts = item if isinstance(item, list) else (*item, *item.values())
    if not all(_is_unicode(part) for part in parts if isinstance(part, str)):
        raise request_error("[body] text: expected Unicode, got a lone surrogate")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_NAMES:
        raise request_error(f"[body] json: expected at most {MAX_NAMES} names in an object")
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise request_error(f"[body] json: expected each name once, got {twice[:80]!r} twice")
    return value


def _refuse_constant(name: str) -> float:
    raise request_error(f"[body] json: expected finite numbers, got {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise request_error(f"[body] json: expected finite numbers, got {text[:40]}")
    # JSON has one kind of number: 1.0 is the integer 1, as in JSON Schema.
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _too_large(max_bytes: int) -> WireException:
    return request_error(f"[body] size: expected at most {max_bytes} bytes", code="body_too_large")


def _too_deep(max_depth: int) -> WireException:
    return request_error(f"[body] json: expected at most {max_depth} levels")
