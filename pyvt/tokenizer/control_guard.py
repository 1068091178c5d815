"""Callers' strings that cannot become control tokens, whatever a template does with them.

Before rendering, characters of a caller's strings are replaced, one for one, by stand-ins: private
code points that occur nowhere else in this request. Afterwards only text without stand-ins can be
a control token, and ``Tokenizer.encode_rendered`` turns the rest back. Replaced are

1. the first and the last character of every control token, wherever they stand, so that no cut,
   join, strip or replace in a template makes a token of pieces: in Qwen's case ``<`` and ``>``;
2. one character of a string that could be the middle of a control token and that the template does
   not know as a word: ``tool_call`` as the name of a parameter, in a template that prints
   ``<`` name ``>``;
3. characters that Unicode normalisation (NFKC) turns into those of 1.

Lengths, positions and equality of strings are as before. A template that searches callers' strings
for a literal of its own (``"<image>" in content``) still finds it when no control token is part of
the literal: such occurrences keep their characters, but for the first one of a control token.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

from pyvt.errors import RequestError
from pyvt.tokenizer.base import restore

# Roles are words of the protocol: "<|" + role + "|>" is how some templates write a control token.
KNOWN_ROLES = frozenset(
    [
        "assistant",
        "context",
        "critic",
        "developer",
        "document",
        "documents",
        "environment",
        "function",
        "ipython",
        "model",
        "observation",
        "system",
        "tool",
        "tool_response",
        "user",
    ]
)


class ControlGuard:
    """What to guard for one tokenizer and one template.

    Args:
        control_texts: texts of the tokenizer's control tokens.
        words: every string that the template looks up or compares with.
        probes: literals that the template searches strings for.
    """

    def __init__(
        self, control_texts: Iterable[str], words: frozenset[str], probes: Iterable[str]
    ) -> None:
        texts = sorted(set(filter(None, control_texts)), key=len, reverse=True)
        self.words = words
        self.borders = frozenset(chain.from_iterable((text[0], text[-1]) for text in texts))
        self._middles = "\0".join(text[1:-1] for text in texts)
        self._starts = re.compile("(?=" + "|".join(map(re.escape, texts)) + ")") if texts else None
        kept = [
            probe
            for probe in probes
            if not self.borders.isdisjoint(probe)
            and not any(probe in text or text in probe for text in texts)
        ]
        longest_first = sorted(kept, key=len, reverse=True)
        self._probes = re.compile("|".join(map(re.escape, longest_first))) if kept else None

    def is_border(self, char: str) -> bool:
        """Whether a character is the first or last of a control token, or normalises to one."""
        return char in self.borders or (
            char > "\x7f" and not self.borders.isdisjoint(_normalised(char))
        )

    def is_middle(self, text: str) -> bool:
        """Whether a whole string could be the inside of a control token."""
        inner = text.strip()
        return bool(inner) and inner in self._middles and inner not in self.words

    def kept_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of ``text`` whose characters stay."""
        if self._probes is not None:
            yield from (match.span() for match in self._probes.finditer(text))

    def token_starts(self, text: str) -> Iterator[int]:
        """Yield where a control token's text begins, overlapping ones included."""
        if self._starts is not None:
            yield from (match.start() for match in self._starts.finditer(text))


@lru_cache(maxsize=4096)
def _normalised(char: str) -> str:
    return unicodedata.normalize("NFKC", char)


class StandIns:
    """The stand-ins of one rendering: what was replaced by what.

    Args:
        guard: what to replace.
        texts: everything that the rendering may print; no stand-in occurs in it.
    """

    def __init__(self, guard: ControlGuard, texts: Iterable[str]) -> None:
        self._guard = guard
        self._taken = set(chain.from_iterable(texts))
        self._free = _private_code_points()
        self._stand_in_of: dict[str, str] = {}
        self.originals: dict[str, str] = {}

    def guarded(self, text: str) -> str:
        """Return a caller's string with its risky characters replaced."""
        risky = sorted(char for char in set(text) if self._guard.is_border(char))
        if not risky:
            return self._broken(text) if self._guard.is_middle(text) else text
        pieces: list[str] = []
        done = 0
        for start, stop in self._guard.kept_spans(text):
            pieces += (self._replaced(text[done:start], risky), text[start:stop])
            done = stop
        pieces.append(self._replaced(text[done:], risky))
        result = "".join(pieces)
        if len(pieces) == 1:
            return result
        starts = set(self._guard.token_starts(text))
        return "".join(
            self._stand_in(char) if idx in starts and char not in self.originals else char
            for idx, char in enumerate(result)
        )

    def guarded_data(self, value: Any, keep: frozenset[str] = frozenset()) -> Any:
        """Return JSON data with every string in it guarded, keys too, but for those in ``keep``."""
        match value:
            case str():
                return value if value in keep else self.guarded(value)
            case list():
                return [self.guarded_data(item) for item in value]
            case dict():
                return {self.guarded(k): self.guarded_data(v) for k, v in value.items()}
            case _:
                return value

    def restored(self, text: str) -> str:
        """Return a guarded text as the caller wrote it."""
        return restore(text, self.originals)

    def _replaced(self, text: str, chars: Iterable[str]) -> str:
        for char in chars:
            text = text.replace(char, self._stand_in(char))
        return text

    def _broken(self, text: str) -> str:
        """Replace the first character that is no space."""
        idx = len(text) - len(text.lstrip())
        return text[:idx] + self._stand_in(text[idx]) + text[idx + 1 :]

    def _stand_in(self, char: str) -> str:
        known = self._stand_in_of.get(char)
        if known is not None:
            return known
        stand_in = next((c for c in self._free if c not in self._taken), None)
        if stand_in is None:
            raise RequestError(
                "[chat] messages: expected some private-use code points to be free, got all in use",
                param="messages",
            )
        self._stand_in_of[char] = stand_in
        self.originals[stand_in] = char
        return stand_in


def _private_code_points() -> Iterator[str]:
    """Noncharacters first, then the private planes: none has a meaning in a vocabulary."""
    planes = (chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    return chain(map(chr, range(0xFDD0, 0xFDF0)), planes, map(chr, range(0xF0000, 0xFFFFE)))


def all_strings(value: Any) -> Iterator[str]:
    """Yield every string in JSON data, keys included."""
    match value:
        case str():
            yield value
        case list():
            yield from chain.from_iterable(map(all_strings, value))
        case dict():
            for key, item in value.items():
                yield from all_strings(key)
                yield from all_strings(item)
        case _:
            return
