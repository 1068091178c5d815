"""What is wrong with a field, in the words of all our errors: what was expected, what came.

pydantic finds it. Of a field that may be of several types it tells one failure for each of them:
the one that matched best is the one that came furthest into the value, and where none came further
than the others all of them are told.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

_MAX_CHARS = 60

# By pydantic's kind of an error; the fields in braces are of its context.
_EXPECTED = {
    "missing": "it",
    "string_type": "a text",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
    "string_too_short": "a text of at least {min_length}",
    "string_too_long": "a text of at most {max_length}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
}
# Where the number is what is wrong, and not what kind of thing it is.
_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_LENGTHS = ("too_short", "too_long", "string_too_short", "string_too_long")
_MEMBERS = frozenset({"str", "int", "float", "bool", "dict", "list"})

_CHAT = 'such as [{"role": "user", "content": "Hello"}]'
_REMEDIES = {
    "messages": f"send the conversation, {_CHAT}",
    "input": f"send a text, or the conversation, {_CHAT}",
    "prompt": "send a text, token ids, or a list of such",
    "tokens": "send ids of tokens, such as [1, 2]",
}
_REMEDIES_OF_MISSING = {
    **_REMEDIES,
    "max_tokens": "say how many tokens the answer may have at most",
    "request_id": "send the id of the answer that shall end",
    "role": "say whose message it is",
    "name": "say which function it is",
    "function": 'send {"name": …, "parameters": …} in it',
    "type": "say what it is, such as 'text' of a part or 'function' of a tool",
}


def wrong_field(error: ValidationError) -> tuple[str, str]:
    """Return the path of the first wrong field and a sentence about it."""
    found = error.errors(include_url=False)
    first = _path(found[0]["loc"])
    # Tries of one field begin alike; what follows the first field is told once that is mended.
    tries = [item for item in found if _path(item["loc"])[:1] == first[:1]]
    path = max((_path(item["loc"]) for item in tries), key=_reach)
    tries = [item for item in tries if _path(item["loc"]) == path]
    expected = " or ".join(dict.fromkeys(_expected(item) for item in tries))
    text = f"expected {expected}, got {_got(tries[0])}"
    remedies = _REMEDIES_OF_MISSING if tries[0]["type"] == "missing" else _REMEDIES
    remedy = remedies.get(str(path[-1]) if path else "")
    return _told(path) or "body", text if remedy is None else f"{text}; {remedy}"


def _path(places: Sequence[str | int]) -> list[str | int]:
    """Return the names of a place without the types that pydantic tried there."""
    return [place for place in places if isinstance(place, int) or not _is_type(place)]


def _reach(path: Sequence[str | int]) -> tuple[int, list[int]]:
    """Return how far into a value a path leads: deep, and then far in its lists."""
    return len(path), [place for place in path if isinstance(place, int)]


def _told(path: Sequence[str | int]) -> str:
    """Return a path as OpenAI writes it, such as ``messages[0].role``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def _is_type(place: str) -> bool:
    return place in _MEMBERS or "[" in place or place[:1].isupper()


def _expected(item: Mapping[str, Any]) -> str:
    template = _EXPECTED.get(item["type"])
    if template is None:  # a kind that no field of ours has
        return f"another value ({item['msg'][:_MAX_CHARS].lower()})"
    return template.format(**item.get("ctx", {}))


def _got(item: Mapping[str, Any]) -> str:
    """Return what came: a short value where it matters, else its kind."""
    kind, value = item["type"], item["input"]
    if kind == "missing":
        return "nothing"
    if kind in _LENGTHS:
        return str(len(value))
    if kind in _RANGES or isinstance(value, float):
        return str(value)[:_MAX_CHARS]
    if kind == "literal_error" and isinstance(value, str):
        return repr(value[:_MAX_CHARS])
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return "a number"
        case str():
            return "a text"
        case list() | tuple():
            return "a list"
    return "an object"
