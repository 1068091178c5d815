"""Hermes and Qwen 2.5/3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from typing import ClassVar

from pyvt.server.tool_parsers.base import ToolSchemas, TriggeredParser
from pyvt.server.tool_parsers.call_object import CallObject

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class HermesParser(TriggeredParser):
    """A block holds one object or several."""

    triggers: ClassVar[tuple[str, ...]] = (OPENING,)

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__(tools)
        self._call: CallObject | None = None
        self._raw = ""

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        return self._call is not None and self._call.is_in_arguments

    def _begin(self, trigger: str) -> None:
        self._raw = trigger
        self._call = CallObject()

    def _inside(self) -> bool:
        return self._after() if self._call is None else self._read(self._call)

    def _read(self, call: CallObject) -> bool:
        self._buffer = self._buffer[call.read(self._buffer) :]
        if call.name is not None and not call.is_told:
            call.is_told = True
            self._start_call(call.name)
        if call.is_told:
            self._arguments(call.take_arguments())
        if call.is_done:
            self._call = None
            return True
        if call.is_broken:
            if call.is_told:
                self._call = None
            else:
                self._give_back(self._raw + call.raw)
            return True
        return False

    def _after(self) -> bool:
        """Read on after an object: the end of the block, or the next object."""
        self._buffer = self._buffer.lstrip()
        if self._buffer.startswith(CLOSING):
            self._buffer = self._buffer[len(CLOSING) :]
            self._leave()
            return True
        if not self._buffer or CLOSING.startswith(self._buffer):
            return False
        if self._buffer[0] in "{,":
            self._buffer = self._buffer.removeprefix(",")
            self._raw = ""
            self._call = CallObject()
            return True
        self._leave()
        return True

    def _cut(self) -> None:
        if self._call is not None and not self._call.is_told:
            self._give_back(self._raw + self._call.raw)
        else:
            self._buffer = ""
