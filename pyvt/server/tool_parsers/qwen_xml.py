"""Qwen3-Coder and Qwen3.5: ``<function=f>`` with ``<parameter=p>`` values as plain text.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A value is what its schema says: a string is taken as it is written, without the line ends next to
the tags; another type is read as JSON, else as a Python literal, else as a string.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pyvt.server.answer.search import first_of, num_open
from pyvt.server.plain_json import loaded, written
from pyvt.server.tool_parsers.base import ToolSchemas, TriggeredParser

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_IN_ARGUMENTS = ("body", "parameter", "value")
_BODY_WORDS = (PARAMETER, FUNCTION_END, CLOSING)


class QwenXmlParser(TriggeredParser):
    """Strings are given out as they are written, other values when they are whole."""

    triggers: ClassVar[tuple[str, ...]] = (OPENING, FUNCTION)

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools)
        self._state = "block"
        self._raw = ""
        self._properties: Mapping[str, Any] = {}
        self._num_parameters = 0
        self._name = ""
        self._is_text = False
        self._has_text = False

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        return self._is_inside and self._state in _IN_ARGUMENTS

    def _begin(self, trigger: str) -> None:
        self._raw = trigger
        self._state = "block" if trigger == OPENING else "function"

    def _inside(self) -> bool:
        match self._state:
            case "block":
                return self._block()
            case "function":
                return self._function()
            case "body":
                return self._body()
            case "parameter":
                return self._parameter()
            case _:
                return self._value()

    def _block(self) -> bool:
        """Read on between ``<tool_call>`` and a function, or the end of the block."""
        seen = self._buffer.lstrip()
        if seen.startswith(FUNCTION):
            self._raw += self._buffer[: len(self._buffer) - len(seen)] + FUNCTION
            self._buffer = seen[len(FUNCTION) :]
            self._state = "function"
            return True
        if not self._raw and seen.startswith(CLOSING):
            self._buffer = seen[len(CLOSING) :]
            self._leave()
            return True
        if FUNCTION.startswith(seen) or (not self._raw and CLOSING.startswith(seen)):
            return False
        if self._raw:
            self._give_back(self._raw)
        else:
            self._leave()
        return True

    def _function(self) -> bool:
        """Read on in the name of a function."""
        name, end, rest = self._buffer.partition(">")
        if "\n" in name or "<" in name or (end and not name.strip()):
            self._give_back(self._raw)
            return True
        if not end:
            return False
        self._buffer, self._raw = rest, ""
        self._name = name.strip()
        properties = self.tools.get(self._name, {}).get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._num_parameters = 0
        self._start_call(self._name)
        self._state = "body"
        return True

    def _body(self) -> bool:
        """Read on between parameters; other text there is dropped."""
        at, word = first_of(self._buffer, _BODY_WORDS)
        if at < 0:
            size = num_open(self._buffer, _BODY_WORDS)
            self._buffer = self._buffer[len(self._buffer) - size :]
            return False
        self._buffer = self._buffer[at + len(word) :]
        if word == PARAMETER:
            self._state = "parameter"
            return True
        self._arguments("}" if self._num_parameters else "{}")
        if word == CLOSING:
            self._leave()
        self._state = "block"
        return True

    def _parameter(self) -> bool:
        """Read on in the name of a parameter."""
        name, end, rest = self._buffer.partition(">")
        if not end:
            return False
        self._name, self._buffer = name.strip(), rest
        self._arguments("{" if not self._num_parameters else ", ")
        self._arguments(f"{_quoted(self._name)}: ")
        self._num_parameters += 1
        self._is_text = types_of(self._properties.get(self._name)) == {"string"}
        self._has_text = False
        if self._is_text:
            self._arguments('"')
        self._state = "value"
        return True

    def _value(self) -> bool:
        """Read on in a value."""
        before, end, after = self._buffer.partition(PARAMETER_END)
        if not self._is_text:
            if not end:
                return False
            schema = self._properties.get(self._name)
            self._arguments(_as_json(before.removeprefix("\n").removesuffix("\n"), schema))
        elif end:
            self._text(before.removesuffix("\n"))
            self._arguments('"')
        else:
            # The line end before the closing tag belongs to the tag.
            size = num_open(before, ("\n" + PARAMETER_END, PARAMETER_END))
            self._text(before[: len(before) - size])
            self._buffer = before[len(before) - size :]
            return False
        self._buffer = after
        self._state = "body"
        return True

    def _text(self, text: str) -> None:
        if not text:
            return
        if not self._has_text:
            self._has_text = True
            text = text.removeprefix("\n")
        self._arguments(_quoted(text)[1:-1])

    def _cut(self) -> None:
        if self._raw:
            self._give_back(self._raw)
        else:
            self._buffer = ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: Any) -> set[str]:
    """Return the types that a parameter's schema allows; a string where it says nothing."""
    if not isinstance(schema, Mapping):
        return {"any"}
    if "type" in schema:
        kinds = schema["type"]
        if isinstance(kinds, list):
            return {str(kind) for kind in kinds}
        return {kinds} if isinstance(kinds, str) else {"any"}
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return {kind for part in schema[name] for kind in types_of(part)}
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return {"string"} if all(isinstance(item, str) for item in schema["enum"]) else {"any"}
    return {"any"}


def _as_json(text: str, schema: Any) -> str:
    """Return the JSON of a value that is not only a string."""
    kinds = types_of(schema)
    try:
        value = loaded(text)
    except ValueError:
        value = _literal(text)
    is_string = isinstance(value, str)
    is_known = (
        "any" in kinds or _kind(value) in kinds or (value == value and _is_whole(value, kinds))
    )
    if "string" in kinds and not is_string and not is_known:
        value = text
    return json.dumps(value, ensure_ascii=False)


def _literal(text: str) -> Any:
    """Return a Python literal that JSON can say; the text itself where it is none."""
    try:
        value = ast.literal_eval(text.strip())
        written(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
    return names.get(type(value), "null" if value is None else "array")


def _is_whole(value: Any, kinds: set[str]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and "number" in kinds
