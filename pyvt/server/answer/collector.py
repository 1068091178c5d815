"""From the engine's outputs to one answer's events, its tokens and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyvt.outputs import CompletionOutput, PositionLogprobs
from pyvt.server.answer.events import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    merged,
)
from pyvt.server.answer.parser import AnswerFormat, AnswerParser


@dataclass(slots=True)
class Call:
    """A tool call and its arguments so far."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One of the answers to a request, as far as it has come.

    Attributes:
        form: how its text is read.
        finish_reason: the engine's word, ``stop`` also for a stop string of the content; None
            while it goes on.
        is_call_cut: whether it ended inside the arguments of its last call.
        num_tokens: every token that was sampled for it.
        num_reasoning_tokens: those up to the end of its reasoning, tags included.
        logprobs: of every token, where asked for.
    """

    form: AnswerFormat
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    is_call_cut: bool = False
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    _parser: AnswerParser = field(init=False)
    _is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        form = self.form
        self._parser = form.parser()
        self._is_plain = form.tags is None and form.dialect is None and not form.stop

    @property
    def has_called(self) -> bool:
        """Whether it ended by itself with calls that the client can carry out."""
        return self.finish_reason == "stop" and bool(self.calls) and not self.is_call_cut

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None

    def take(self, new: CompletionOutput) -> list[Event]:
        """Add what is new; return its events. Nothing may come after the end."""
        self.num_tokens += len(new.token_ids)
        self.token_ids += new.token_ids
        if self._is_plain and new.finish_reason is None:
            return self._text(new)
        was_reasoning = self._parser.is_reasoning
        events = self._parser.push(new.text)
        if was_reasoning or self._parser.is_reasoning:
            self.num_reasoning_tokens = self.num_tokens
        self.logprobs += new.logprobs or ()
        if self._parser.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._parser.matched
        elif new.finish_reason is not None:
            self.finish_reason, self.stop_reason = new.finish_reason, new.stop_reason
        if self.is_done:
            events += self._parser.finish()
            self.is_call_cut = self._parser.is_call_cut
        if self.form.is_single:
            events = self._cut(events)
        if len(events) > 1:
            events = merged(events)
        self._keep(events)
        return events

    def _text(self, new: CompletionOutput) -> list[Event]:
        """Add text in which nothing is looked for."""
        if new.logprobs is not None:
            self.logprobs += new.logprobs
        if not new.text:
            return []
        self.content.append(new.text)
        return [Content(new.text)]

    def _cut(self, events: list[Event]) -> list[Event]:
        """Return the events before a second call; where there is one, the answer ends."""
        for place, event in enumerate(events):
            if isinstance(event, CallStart) and event.index > 0:
                self.finish_reason, self.stop_reason, self.is_call_cut = "stop", None, False
                return events[:place]
        return events

    def _keep(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content.append(text)
                case Reasoning(text):
                    self.reasoning.append(text)
                case CallStart(_, name):
                    self.calls.append(Call(name))
                case CallArguments(index, text):
                    self.calls[index].arguments += text
