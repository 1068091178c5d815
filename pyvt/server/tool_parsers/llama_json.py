"""Llama 3.1 to 3.3: the whole answer is ``{"name": …, "parameters": {…}}``, several with ``;``.

The object may follow ``<|python_tag|>``. Only an object that names one of the request's tools is a
call; another object is an answer in JSON.
"""

from pyvt.server.answer.events import CallArguments, CallStart, Content, Event
from pyvt.server.tool_parsers.base import ToolSchemas
from pyvt.server.tool_parsers.call_object import CallObject

TAG = "<|python_tag|>"

_BETWEEN = "; \n\t"


class LlamaJsonParser:
    """Decides at the start of the text, and after each call, whether a call begins."""

    def __init__(self, tools: ToolSchemas) -> None:
        self.tools = tools
        self.num_calls = 0
        self._buffer = ""
        self._call: CallObject | None = None
        self._lead = ""
        self._is_content = False

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        return self._call is not None and self._call.is_in_arguments

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        self._buffer += text
        events: list[Event] = []
        while self._advance(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        left = self._buffer
        if self._call is not None:
            left = "" if self._call.is_told else self._lead + self._call.raw + left
        elif self.num_calls:
            left = left.strip(_BETWEEN)
        self._buffer, self._call = "", None
        return [Content(left)] if left else []

    def _advance(self, events: list[Event]) -> bool:
        if self._is_content:
            if self._buffer:
                events.append(Content(self._buffer))
            self._buffer = ""
            return False
        return self._begin() if self._call is None else self._read(self._call, events)

    def _begin(self) -> bool:
        seen = self._buffer.lstrip(_BETWEEN if self.num_calls else None)
        if seen.startswith(TAG):
            seen = seen[len(TAG) :].lstrip()
        if seen.startswith("{"):
            self._lead = self._buffer[: len(self._buffer) - len(seen)]
            self._buffer = seen
            self._call = CallObject()
            return True
        if not seen or TAG.startswith(seen):
            return False
        self._is_content = True
        return True

    def _read(self, call: CallObject, events: list[Event]) -> bool:
        self._buffer = self._buffer[call.read(self._buffer) :]
        if not call.is_told and call.name in self.tools and call.has_begun_arguments:
            call.is_told = True
            assert call.name is not None, "a name of the tools is a name"
            events.append(CallStart(self.num_calls, call.name))
            self.num_calls += 1
        if call.is_told:
            text = call.take_arguments()
            if text:
                events.append(CallArguments(self.num_calls - 1, text))
        if not (call.is_done or call.is_broken):
            return False
        if not call.is_told:
            self._buffer = self._lead + call.raw + self._buffer
            self._is_content = True
        self._call = None
        return True
