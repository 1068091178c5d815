"""A caller's messages, made into what templates expect.

1. Plain JSON types only, keys with the value None dropped, as transformers does.
2. ``reasoning`` and ``thinking`` are other names of ``reasoning_content``.
3. Reasoning that an assistant message still carries in its content goes to ``reasoning_content``:
   templates search the content for ``</think>``, which is no longer there to find once the text of
   control tokens is guarded.
"""

import re
from collections.abc import Mapping
from typing import Any

from pyvt.errors import RequestError

Message = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MAX_DEPTH = 64

# What a model writes: reasoning from the very start, closed by a tag that ends its line. The
# opening tag is missing where the template opened it.
_REASONED = re.compile(r"\s*(?P<open><think>)?(?P<reasoning>.*?)</think>(?P<answer>.*)", re.DOTALL)


def plain_data(value: Any, param: str, depth: int = 0) -> Any:
    """Return a copy of JSON-like data in exact built-in types.

    Raises RequestError for anything else and for nesting deeper than 64: an object of another type
    would bring its methods into the template.
    """
    if depth > _MAX_DEPTH:
        raise RequestError(f"[chat] {param}: expected at most {_MAX_DEPTH} levels", param=param)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RequestError(
                    f"[chat] {param}: expected names as keys, got {key!r}", param=param
                )
        return {
            plain_data(key, param, depth + 1): plain_data(item, param, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_data(item, param, depth + 1) for item in value]
    for scalar in (str, int, float):
        if isinstance(value, scalar):
            return scalar(value)
    raise RequestError(
        f"[chat] {param}: expected JSON data, got an object of {type(value).__name__}", param=param
    )


def plain_messages(messages: Any) -> list[Message]:
    """Return checked copies of messages, without None values, reasoning under its standard name.

    Raises RequestError when it is no list of objects that have a role each.
    """
    if not isinstance(messages, list | tuple):
        raise RequestError(
            f"[chat] messages: expected a list of messages, got {type(messages).__name__}",
            param="messages",
        )
    plain = []
    for idx, message in enumerate(messages):
        param = f"messages[{idx}]"
        if not isinstance(message, Mapping):
            raise RequestError(
                f"[chat] {param}: expected an object with role and content, "
                f"got {type(message).__name__}",
                param=param,
            )
        kept = {k: v for k, v in plain_data(message, param).items() if v is not None}
        if not isinstance(kept.get("role"), str):
            raise RequestError(
                f"[chat] {param}.role: expected a string, got {kept.get('role')!r}", param=param
            )
        reasoning = next((kept[name] for name in REASONING_FIELDS if name in kept), None)
        if reasoning is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        plain.append(kept)
    return plain


def split_reasoning(content: str) -> tuple[str, str] | None:
    """Return (reasoning, answer) of a reply that begins with its reasoning, else None.

    The blank lines around the tags belong to the tags. A ``</think>`` in the middle of prose is
    text: without the opening tag, the closing one has to stand between two line ends.
    """
    found = _REASONED.fullmatch(content)
    if found is None:
        return None
    reasoning, answer = found["reasoning"], found["answer"]
    if not found["open"] and not (reasoning.endswith("\n") and answer[:1] in ("", "\n")):
        return None
    if not found["open"] and "<think>" in reasoning:
        return None
    return reasoning.strip("\n"), answer.lstrip("\n")


def with_split_reasoning(message: Message) -> Message:
    """Return an assistant message with the reasoning of its content in ``reasoning_content``."""
    content = message.get("content")
    if message["role"] != "assistant" or "reasoning_content" in message:
        return message
    split = split_reasoning(content) if isinstance(content, str) else None
    if split is None:
        return message
    reasoning, answer = split
    return {**message, "content": answer, "reasoning_content": reasoning, "thinking": reasoning}


def with_empty_content(message: Message) -> Message:
    """Return a message of tool calls alone with an empty content; another one as it is."""
    if "tool_calls" in message and "content" not in message:
        return {**message, "content": ""}
    return message
