"""An answer as a row of blocks: reasoning, text, calls, each open until the next begins.

Anthropic's messages and OpenAI's responses are built of such blocks, whole and streamed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pyvt.server.answer.events import CallArguments, CallStart, Content, Event, Reasoning

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """One block; ``text`` is its text so far, of a call its arguments.

    The answer ends, or has come as far as, the block that is not followed by another.
    """

    index: int
    kind: Kind
    name: str = ""
    text: str = ""
    is_followed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a block: it was opened, got text, or was closed."""

    action: Literal["open", "delta", "close"]
    block: Block
    text: str = ""


@dataclass(slots=True)
class Blocks:
    """Sorts one answer's events into blocks."""

    blocks: list[Block] = field(default_factory=list)
    _open: Block | None = None

    def push(self, events: Iterable[Event], *, is_last: bool = False) -> Iterator[Change]:
        """Add events, and close what is open after the last; yield the changes, read them all."""
        for event in events:
            match event:
                case Content(text):
                    yield from self._add("text", text)
                case Reasoning(text):
                    yield from self._add("reasoning", text)
                case CallStart(_, name):
                    yield from self._close(is_followed=True)
                    yield self._begin("call", name)
                case CallArguments(_, text):
                    yield from self._add("call", text)
        if is_last:
            yield from self._close(is_followed=False)

    def _close(self, *, is_followed: bool) -> Iterator[Change]:
        """Close the block that is open, if there is one."""
        if self._open is not None:
            self._open.is_followed = is_followed
            yield Change("close", self._open)
            self._open = None

    def _add(self, kind: Kind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._close(is_followed=True)
            yield self._begin(kind)
        assert self._open is not None, "a block was opened"
        self._open.text += text
        yield Change("delta", self._open, text)

    def _begin(self, kind: Kind, name: str = "") -> Change:
        self._open = Block(len(self.blocks), kind, name)
        self.blocks.append(self._open)
        return Change("open", self._open)
