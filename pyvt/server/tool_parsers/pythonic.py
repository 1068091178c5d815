"""Llama 3.2/4 and LFM2: ``[get_weather(city="Paris", days=2), f()]``, maybe between two tags.

Values are Python literals or JSON. Only a list whose first name is one of the request's tools is
a list of calls; it stands at the start of the text or, anywhere, behind an opening tag. A value
without a name is the parameter that stands at its place in the schema.
"""

import ast
import json
import re
from collections.abc import Mapping

from pyvt.server.answer.events import CallArguments, CallStart, Content, Event
from pyvt.server.answer.search import first_of, num_open
from pyvt.server.plain_json import loaded, written
from pyvt.server.tool_parsers.base import ContentWriter, ToolSchemas

OPENINGS = ("<|python_start|>", "<|tool_call_start|>")
CLOSINGS = ("<|python_end|>", "<|tool_call_end|>")

_NAME = re.compile(r"[\w.\-]*")
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_PAIRS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class PythonicParser(ContentWriter):
    """Decides at the start of the text, and behind each tag, whether there is a list of calls."""

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__()
        self.tools = tools
        self.num_calls = 0
        self._buffer = ""
        self._state = "start"
        self._keys: list[str] = []
        self._num_arguments = 0
        self._reset_value()

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        return self._state == "arguments"

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        self._buffer += text
        while self._advance():
            pass
        return self._take()

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        if self._state in ("start", "content", "tail"):
            self._content(self._without_closing() if self._state == "tail" else self._buffer)
            if self._space:
                self._events.append(Content(self._space))
        self._buffer = self._space = ""
        return self._take()

    def _advance(self) -> bool:
        match self._state:
            case "start":
                return self._start()
            case "name":
                return self._name()
            case "arguments":
                return self._argument()
            case "between":
                return self._between()
            case "tail":
                return self._tail()
            case _:
                return self._outside()

    def _outside(self) -> bool:
        """Give content out up to the next opening tag."""
        at, _ = first_of(self._buffer, OPENINGS)
        size = at if at >= 0 else len(self._buffer) - num_open(self._buffer, OPENINGS)
        self._content(self._buffer[:size])
        self._buffer = self._buffer[size:]
        if at >= 0:
            self._state = "start"
        return at >= 0

    def _start(self) -> bool:
        """Look for the list's first name; nothing is consumed before it is one of the tools."""
        seen = self._buffer.lstrip()
        opening = next((tag for tag in OPENINGS if seen.startswith(tag)), "")
        seen = seen.removeprefix(opening).lstrip()
        if any(opening.startswith(seen) for opening in OPENINGS) or seen == "[":
            return False
        body = seen[1:].lstrip()
        found = _NAME.match(body)
        assert found is not None, "the pattern matches nothing too"
        name, rest = found[0], body[found.end() :].lstrip()
        if seen[0] == "[" and not rest and self._may_be_tool(name):
            return False
        if seen[0] == "[" and rest.startswith("(") and name in self.tools:
            self._buffer, self._state = body, "name"
        else:
            before, _, rest = self._buffer.partition(opening) if opening else ("", "", self._buffer)
            self._content(before + opening)
            self._buffer, self._state = rest, "content"
        return True

    def _may_be_tool(self, start: str) -> bool:
        return any(tool.startswith(start) for tool in self.tools)

    def _name(self) -> bool:
        name, bracket, rest = self._buffer.partition("(")
        if not bracket:
            return False
        self._buffer, self._state = rest, "arguments"
        name = name.strip()
        properties = self.tools.get(name, {}).get("properties")
        self._keys = list(properties) if isinstance(properties, Mapping) else []
        self._num_arguments = 0
        self._reset_value()
        self._space = ""
        self._events.append(CallStart(self.num_calls, name))
        self.num_calls += 1
        return True

    def _reset_value(self) -> None:
        self._at = 0
        self._depth = 0
        self._quote = ""

    def _argument(self) -> bool:
        """Read on up to the comma or bracket that ends an argument."""
        while self._at < len(self._buffer):
            char = self._buffer[self._at]
            if self._quote:
                if char == "\\":
                    self._at += 1
                elif char == self._quote:
                    self._quote = ""
            elif char in "\"'":
                self._quote = char
            elif self._depth == 0 and char in ",)":
                self._end_argument(self._buffer[: self._at], is_last=char == ")")
                self._buffer = self._buffer[self._at + 1 :]
                self._reset_value()
                return True
            else:
                self._depth += _PAIRS.get(char, 0)
            self._at += 1
        return False

    def _end_argument(self, text: str, *, is_last: bool) -> None:
        index = self.num_calls - 1
        if text.strip():
            found = _KEY.match(text)
            number = self._num_arguments
            key = self._keys[number] if number < len(self._keys) else f"arg{number}"
            if found is not None:
                key, text = found[1], text[found.end() :]
            head = "{" if number == 0 else ", "
            pair = f"{json.dumps(key, ensure_ascii=False)}: {_as_json(text.strip())}"
            self._events.append(CallArguments(index, head + pair))
            self._num_arguments += 1
        if is_last:
            self._events.append(CallArguments(index, "}" if self._num_arguments else "{}"))
            self._state = "between"

    def _between(self) -> bool:
        seen = self._buffer.lstrip()
        if not seen:
            return False
        if seen[0] == ",":
            self._buffer, self._state = seen[1:], "name"
        else:
            self._buffer, self._state = seen.removeprefix("]"), "tail"
            self._is_after_call = True
        return True

    def _tail(self) -> bool:
        """Wait until it is certain whether a closing tag follows."""
        seen = self._buffer.lstrip()
        if not seen or any(tag.startswith(seen) for tag in CLOSINGS):
            return False
        self._buffer, self._state = self._without_closing(), "content"
        return True

    def _without_closing(self) -> str:
        text = self._buffer.strip() if self._state == "tail" else self._buffer
        for closing in CLOSINGS:
            if text.startswith(closing):
                return text[len(closing) :].lstrip()
        return text


def _as_json(text: str) -> str:
    """Return the JSON of a literal of JSON or Python; another expression is a string."""
    try:
        return written(loaded(text))
    except ValueError:
        pass
    try:
        return written(ast.literal_eval(text))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
