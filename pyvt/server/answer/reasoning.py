"""Reasoning, split from the answer.

Where the text starts is read from the end of the rendered prompt, never from settings:

1. ``open``: the prompt ends with the opening tag, so the text begins inside the reasoning.
2. ``closed``: the prompt ends with a closing tag; the text is the answer.
3. ``free``: the model may open the reasoning itself, as the first thing that it writes.

Line ends around the tags belong to the tags. A tag in the middle of an answer is text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyvt.server.answer.events import Content, Event, Reasoning
from pyvt.server.answer.search import num_open

Start = Literal["open", "closed", "free"]


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What surrounds reasoning in a model's text, and how the model ends it itself."""

    opening: str
    closing: str
    closing_text: str


REASONING_TAGS: Mapping[str, ReasoningTags] = {
    "think": ReasoningTags("<think>", "</think>", "\n</think>\n\n"),
    "mistral": ReasoningTags("[THINK]", "[/THINK]", "[/THINK]"),
}


def detect_reasoning(template: str) -> ReasoningTags | None:
    """Return the tags that a chat template speaks of; None where it knows no reasoning."""
    for tags in REASONING_TAGS.values():
        if tags.closing in template or tags.opening in template:
            return tags
    return None


def start_state(prompt: str, tags: ReasoningTags) -> Start:
    """Return where the text after a rendered prompt begins.

    Args:
        prompt: the guarded text of the prompt, in which no tag is the caller's.
        tags: the model's tags.
    """
    end = prompt.rstrip()
    if end.endswith(tags.opening):
        return "open"
    return "closed" if end.endswith(tags.closing) else "free"


class ReasoningSplitter:
    """Splits one growing text; give it every piece, then ``finish``."""

    def __init__(self, tags: ReasoningTags, start: Start) -> None:
        self._tags = tags
        self._state = {"open": "reasoning", "closed": "gap", "free": "start"}[start]
        self._buffer = ""
        self._has_reasoned = False

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is inside the reasoning."""
        return self._state == "reasoning"

    def push(self, text: str) -> list[Event]:
        """Add text; return what is certain now."""
        if self._state == "content":
            return [Content(text)] if text else []
        self._buffer += text
        events: list[Event] = []
        while self._advance(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """Return what was held back: the text has ended."""
        left, self._buffer = self._buffer, ""
        if not left or self._state == "gap":
            return []
        if self._state == "reasoning":
            left = left if self._has_reasoned else left.lstrip("\n")
            return [Reasoning(left)] if left else []
        return [Content(left)]

    def _advance(self, events: list[Event]) -> bool:
        """Take one step; returns whether another may follow."""
        match self._state:
            case "start":
                return self._open(events)
            case "reasoning":
                return self._reason(events)
            case "gap":
                return self._skip_gap()
            case _:
                if self._buffer:
                    events.append(Content(self._buffer))
                    self._buffer = ""
                return False

    def _open(self, events: list[Event]) -> bool:
        opening = self._tags.opening
        seen = self._buffer.lstrip()
        if seen.startswith(opening):
            self._buffer = seen[len(opening) :]
            self._state = "reasoning"
            return True
        if opening.startswith(seen):
            return False
        self._state = "content"
        return True

    def _reason(self, events: list[Event]) -> bool:
        if not self._has_reasoned:
            self._buffer = self._buffer.lstrip("\n")
        before, closing, after = self._buffer.partition(self._tags.closing)
        if closing:
            before = before.rstrip("\n")
            self._buffer, self._state = after, "gap"
        else:
            num_held = num_open(before, (self._tags.closing,))
            body = before[: len(before) - num_held].rstrip("\n")
            before, self._buffer = body, before[len(body) :]
        if before:
            self._has_reasoned = True
            events.append(Reasoning(before))
        return bool(closing)

    def _skip_gap(self) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if self._buffer:
            self._state = "content"
        return bool(self._buffer)
