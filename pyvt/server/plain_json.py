"""JSON inside of texts that clients and models write.

A text may be JSON to Python and still be none that an answer or a prompt can have: NaN, half of a
character, more levels than can be walked. Here such a text is no JSON.
"""

import json
from typing import Any


def loaded(text: str, *, is_strict: bool = True) -> Any:
    """Return the value of a JSON text.

    Args:
        text: what a client or a model wrote.
        is_strict: whether line ends inside of its strings must be escaped.

    Raises:
        ValueError: it is no JSON that can be written again.
    """
    try:
        value = json.loads(text, strict=is_strict)
    except RecursionError as error:
        raise ValueError("more levels than can be read") from error
    written(value)
    return value


def written(value: Any) -> str:
    """Return the JSON of a value; ValueError where JSON in UTF-8 cannot say it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (RecursionError, TypeError) as error:
        raise ValueError("a value that JSON cannot say") from error
    return text
