"""What a model's text turns into, in order; the wire formats are built from these alone.

Events are not frozen: there is one a token, and a frozen one takes three times as long to make.
Nobody changes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(slots=True)
class CallStart:
    """A tool call begins; its arguments follow. ``index`` counts the calls of one answer from 0."""

    index: int
    name: str


@dataclass(slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments


def merged(events: Iterable[Event]) -> list[Event]:
    """Return the events with neighbours of one kind joined: the same for any split of a text."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match last, event:
            case Content(before), Content(text):
                joined[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                joined[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(event)
    return joined
