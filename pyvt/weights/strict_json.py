"""JSON from model files: bounded in size, count and depth; no duplicate keys, no NaN.

The parser of the standard library takes all of these, and a header of a few megabytes of ``[]`` can
make it allocate gigabytes: the text is counted before it is parsed.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from pyvt.errors import CheckpointError

MAX_JSON_BYTES = 32 << 20
MAX_JSON_VALUES = 1_000_000
MAX_JSON_DEPTH = 64


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a UTF-8 file. Raises CheckpointError if unreadable or too long."""
    try:
        if not path.is_file():  # a pipe would block
            raise FileNotFoundError("no regular file of that name")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(
            f"[model] {str(path)!r}: expected a readable file, got {error}", path=path
        ) from error
    if len(data) > max_bytes:
        raise CheckpointError(
            f"[model] {str(path)!r}: expected at most {max_bytes} bytes, got more", path=path
        )
    return _decode(data, path, "[model]")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds. Raises CheckpointError naming the file."""
    return parse_json_object(read_text(path, MAX_JSON_BYTES), path, "[model]")


def parse_json_object(data: str | bytes, path: Path, subject: str) -> dict[str, Any]:
    """Return the object that JSON text holds.

    Raises CheckpointError for bad UTF-8, bad syntax, another kind of value, a duplicate key, NaN or
    infinity, a lone surrogate, and for more than ``MAX_JSON_VALUES`` or ``MAX_JSON_DEPTH``.
    """
    text = data if isinstance(data, str) else _decode(data, path, subject)

    def fail(expected: str, got: Any) -> NoReturn:
        raise CheckpointError(f"{subject} {str(path)!r}: expected {expected}, got {got}", path=path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            fail("each JSON key once", f"{twice!r} twice")
        return result

    def finite(literal: str) -> float:
        value = float(literal)
        if not math.isfinite(value):
            fail("finite numbers", literal[:40])
        return value

    if sum(map(text.count, ",[{")) > MAX_JSON_VALUES:
        fail(f"at most {MAX_JSON_VALUES} JSON values", "more")
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_float=finite,
            parse_constant=lambda literal: fail("finite numbers", literal),
        )
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except CheckpointError:
        raise
    except RecursionError:
        fail(f"JSON of at most {MAX_JSON_DEPTH} levels", "more")
    except ValueError as error:
        raise CheckpointError(
            f"{subject} {str(path)!r}: expected JSON, got {error}", path=path
        ) from error
    if not isinstance(value, dict):
        fail("a JSON object", type(value).__name__)
    if not _is_shallow(value):
        fail(f"JSON of at most {MAX_JSON_DEPTH} levels", "more")
    return value


def _decode(data: bytes, path: Path, subject: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{subject} {str(path)!r}: expected UTF-8 text, got {error}", path=path
        ) from error


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return True
    return False
