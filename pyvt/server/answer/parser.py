"""One answer's text on its way to the client: reasoning, stop strings of the content, tool calls.

Stop strings of a model that reasons are looked for in the content alone: a client's ``stop`` must
not cut what the model thinks. The engine then knows nothing of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyvt.engine.output_processor import StopChecker
from pyvt.server.answer.events import Content, Event
from pyvt.server.answer.reasoning import ReasoningSplitter, ReasoningTags, Start
from pyvt.server.tool_parsers import ToolDialect, ToolParser, ToolSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How the text of an answer is read.

    Attributes:
        tags: of reasoning, None where the text has none.
        start: where the text begins.
        dialect: of tool calls, None where there are none to be found.
        tools: the request's tools.
        stop: strings that end the content; only where ``tags`` are set.
        is_stop_included: whether the content keeps the one that ended it.
        is_single: whether a second call ends the answer before it.
        is_call_alone: whether a call is forced, so that there is no content: marks of a call that
            was cut before its name are told nowhere.
    """

    tags: ReasoningTags | None = None
    start: Start = "closed"
    dialect: ToolDialect | None = None
    tools: ToolSchemas | None = None
    stop: Sequence[str] = ()
    is_stop_included: bool = False
    is_single: bool = False
    is_call_alone: bool = False

    def parser(self) -> "AnswerParser":
        """Return a parser of one answer."""
        return AnswerParser(self)


class AnswerParser:
    """Gives the events of one answer; push every piece of text, then ``finish``.

    Attributes:
        is_call_cut: whether the text has ended inside the arguments of a call.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self.is_call_cut = False
        self._is_call_alone = form.is_call_alone
        self._splitter = None
        if form.tags is not None:
            self._splitter = ReasoningSplitter(form.tags, form.start)
        self._stop = None
        if form.stop:
            self._stop = StopChecker(form.stop, is_included=form.is_stop_included)
        self._tools: ToolParser | None = None
        if form.dialect is not None:
            self._tools = form.dialect.parser(form.tools or {})

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is inside the reasoning."""
        return self._splitter is not None and self._splitter.is_reasoning

    @property
    def matched(self) -> str | None:
        """The stop string that ended the content; nothing may be pushed after it."""
        return None if self._stop is None else self._stop.matched

    @property
    def num_calls(self) -> int:
        """Tool calls so far."""
        return 0 if self._tools is None else self._tools.num_calls

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        if self._splitter is None:
            return self._push_content(text)
        return self._content_of(self._splitter.push(text))

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        events: list[Event] = []
        if self.matched is None:
            if self._splitter is not None:
                events += self._content_of(self._splitter.finish())
            if self._stop is not None and self.matched is None:
                events += self._push_tools(self._stop.flush())
        if self._tools is not None:
            self.is_call_cut = self._tools.is_in_arguments
            events += self._told(self._tools.finish())
        return events

    def _content_of(self, split: Sequence[Event]) -> list[Event]:
        events: list[Event] = []
        for event in split:
            if not isinstance(event, Content):
                events.append(event)
            elif self.matched is None:
                events += self._push_content(event.text)
        return events

    def _push_content(self, text: str) -> list[Event]:
        return self._push_tools(text if self._stop is None else self._stop.push(text))

    def _push_tools(self, text: str) -> list[Event]:
        if self._tools is not None:
            return self._told(self._tools.push(text))
        return [Content(text)] if text else []

    def _told(self, events: list[Event]) -> list[Event]:
        """Return what of a parser's events the client is told."""
        if not self._is_call_alone:
            return events
        return [event for event in events if not isinstance(event, Content)]
