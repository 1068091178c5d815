"""Mistral: ``[TOOL_CALLS]`` and an array of objects, or ``[TOOL_CALLS]f[ARGS]{…}`` for each call.

A call's id may stand between name and arguments (``[CALL_ID]…``); it is dropped, the server makes
its own.
"""

from typing import ClassVar

from pyvt.server.answer.search import first_of
from pyvt.server.tool_parsers.base import ToolSchemas, TriggeredParser
from pyvt.server.tool_parsers.call_object import CallObject

OPENING, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(TriggeredParser):
    """Reads both forms; the first character after the tag tells them apart."""

    triggers: ClassVar[tuple[str, ...]] = (OPENING,)

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools)
        self._call: CallObject | None = None
        self._is_array = False
        self._is_first = True
        self._raw = ""

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        return self._call is not None and self._call.is_in_arguments

    def _begin(self, trigger: str) -> None:
        self._raw = trigger
        self._call = None
        self._is_array, self._is_first = False, True

    def _inside(self) -> bool:
        if self._call is not None:
            return self._read(self._call)
        seen = self._buffer.lstrip()
        if not seen:
            return False
        if self._is_first:
            self._is_first = False
            self._is_array = seen[0] == "["
            if self._is_array:
                self._raw += self._buffer[: len(self._buffer) - len(seen)] + "["
                self._buffer = seen[1:]
                return True
        return self._next_of_array(seen) if self._is_array else self._name()

    def _next_of_array(self, seen: str) -> bool:
        if seen[0] == "{":
            self._buffer = seen
            self._call = CallObject()
            return True
        if seen[0] == "," and not self._raw:
            self._buffer = seen[1:]
            return True
        if self._raw:
            self._give_back(self._raw)
        else:
            self._buffer = seen[1:] if seen[0] == "]" else seen
            self._leave()
        return True

    def _name(self) -> bool:
        """Read on in the name of a function, up to its arguments."""
        at, word = first_of(self._buffer, (ARGS, "{", OPENING))
        if at < 0:
            return False
        name = self._buffer[:at].partition(CALL_ID)[0].strip()
        if not name or word == OPENING:
            self._give_back(self._raw)
            return True
        self._buffer = self._buffer[at + (len(ARGS) if word == ARGS else 0) :]
        self._raw = ""
        self._start_call(name)
        self._call = CallObject.of_arguments(name)
        self._call.is_told = True
        return True

    def _read(self, call: CallObject) -> bool:
        self._buffer = self._buffer[call.read(self._buffer) :]
        if call.name is not None and not call.is_told:
            call.is_told = True
            self._start_call(call.name)
        if call.is_told:
            self._arguments(call.take_arguments())
        if not (call.is_done or call.is_broken):
            return False
        self._call = None
        if not call.is_told:
            self._give_back(self._raw + call.raw)
        elif not self._is_array:
            self._leave()
        self._raw = ""
        return True

    def _cut(self) -> None:
        if self._call is not None and self._call.is_told:
            self._buffer = ""
        elif self._raw:
            self._give_back(self._raw + ("" if self._call is None else self._call.raw))
        else:
            self._buffer = ""
