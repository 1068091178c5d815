"""Texts cut in every way: a parser must say the same of all of them."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from hypothesis import strategies as st

from pyvt.server.answer.events import Event, merged


class Parser(Protocol):
    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


def parse(parser: Parser, pieces: Sequence[str]) -> list[Event]:
    """Return the merged events of a text that comes in pieces."""
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return merged([*events, *parser.finish()])


def cut(text: str, places: Sequence[int]) -> list[str]:
    """Return the text cut at these places."""
    edges = [0, *sorted({place for place in places if 0 < place < len(text)}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def every_cut(make: Callable[[], Parser], text: str) -> None:
    """Assert that one cut anywhere, and a cut after every character, change nothing."""
    whole = parse(make(), [text])
    assert parse(make(), list(text)) == whole
    for place in range(1, len(text)):
        assert parse(make(), [text[:place], text[place:]]) == whole, (text[:place], text[place:])


def noisy_texts(words: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts that are made of a dialect's own words, whole and broken, and of noise."""
    pieces = st.sampled_from(
        [*words, *(word[:-1] for word in words), " ", "\n", "x", '"', "{", "}"]
    )
    return st.lists(pieces, max_size=14).map("".join)
