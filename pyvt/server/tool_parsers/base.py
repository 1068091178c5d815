"""What tool parsers share.

A parser gets the answer's text in pieces, cut anywhere, and returns events. The contract:

1. The merged events of a text do not depend on how it was cut.
2. Nothing is lost: what turns out to be no call is content, as it was written.
3. Whitespace between content and a call, and between calls, is neither's.
4. A call that the end of the text cuts keeps the arguments it has; ``is_in_arguments`` tells it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from pyvt.server.answer.events import CallArguments, CallStart, Content, Event
from pyvt.server.answer.search import first_of, num_open

# Parameters of each tool by the tool's name: JSON schemas.
ToolSchemas = Mapping[str, Mapping[str, Any]]


class ToolParser(Protocol):
    """One answer's calls; made for each answer."""

    num_calls: int

    @property
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""
        ...

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        ...

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        ...


class ContentWriter:
    """Gives content out, without the space that belongs to neither content nor calls."""

    def __init__(self) -> None:
        self._space = ""
        self._is_after_call = False
        self._events: list[Event] = []

    def _take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def _content(self, text: str) -> None:
        """Give content out, but for space at its end and after a call."""
        if not text:
            return
        if self._is_after_call:
            text = text.lstrip()
            if not text:
                return
            self._is_after_call = False
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._events.append(Content(body))


class TriggeredParser(ContentWriter, ABC):
    """Content until one of ``triggers`` occurs, then whatever the dialect has in ``_inside``.

    A dialect consumes ``_buffer``. It leaves a call by ``_leave`` or, where nothing was told of it
    yet, by ``_give_back``.
    """

    triggers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tools: ToolSchemas) -> None:
        super().__init__()
        self.tools = tools
        self.num_calls = 0
        self._buffer = ""
        self._is_inside = False

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        self._buffer += text
        while self._inside() if self._is_inside else self._outside():
            pass
        return self._take()

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        if self._is_inside:
            self._cut()
        self._content(self._buffer)
        self._buffer = ""
        if self._space:
            self._events.append(Content(self._space))
        return self._take()

    @property
    @abstractmethod
    def is_in_arguments(self) -> bool:
        """Whether a call was told whose arguments have not ended; ask before ``finish``."""

    @abstractmethod
    def _begin(self, trigger: str) -> None:
        """Get ready for a call; ``_buffer`` goes on after the trigger."""

    @abstractmethod
    def _inside(self) -> bool:
        """Read on in a call; returns whether there is something left to look at."""

    @abstractmethod
    def _cut(self) -> None:
        """End a call in whose middle the text ended; what stays in ``_buffer`` becomes content."""

    def _outside(self) -> bool:
        at, trigger = first_of(self._buffer, self.triggers)
        if at < 0:
            size = len(self._buffer) - num_open(self._buffer, self.triggers)
            self._content(self._buffer[:size])
            self._buffer = self._buffer[size:]
            return False
        self._content(self._buffer[:at])
        self._buffer = self._buffer[at + len(trigger) :]
        self._is_inside = True
        self._begin(trigger)
        return True

    def _start_call(self, name: str) -> None:
        self._space = ""
        self._events.append(CallStart(self.num_calls, name))
        self.num_calls += 1

    def _arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self.num_calls - 1, text))

    def _leave(self) -> None:
        self._is_inside = False
        self._is_after_call = True

    def _give_back(self, text: str) -> None:
        """Leave what was no call: its text is content."""
        self._is_inside = False
        self._content(text)


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters' schema of each function of a request."""
    schemas = {}
    for tool in tools:
        function = tool.get("function") or {}
        schemas[str(function.get("name"))] = function.get("parameters") or {}
    return schemas
