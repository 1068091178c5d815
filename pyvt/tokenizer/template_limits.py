"""Limits of a rendering: how long it may take and how much it may make.

1. Every loop turn, call, filter and operator looks at the clock (``Limits.time_s``).
2. Every string, list, tuple or dict that a template makes is weighed: characters plus items, shared
   parts counted each time they occur, a number as its digits. One value and the sum of all values
   are bounded.
3. What one C call could blow up (``*``, ``%``, ``replace``, ``join``, ``format``, padding,
   ``strftime``) is estimated before it runs; JSON is measured as it is written.

A slice is not weighed when it is cut; it is when it becomes part of something.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

_MAX_INT_BITS = 4096
_MAX_WIDTH = 1_000_000
_MAX_INDENT = 256
_WIDE_FIELD = re.compile(r"\d{7}")
_NUMBER = re.compile(r"\d+")
# ``{:{width}}`` and ``%*d``: the width is one of the values.
_VALUE_AS_WIDTH = re.compile(r":[^{}]*\{|%[^a-zA-Z%]*\*")
# A year can be written wider than its directive; Python gives up at so many characters for each.
_STRFTIME_FACTOR = 256


class LimitError(TemplateError):
    """A template went over one of its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one rendering; weights are characters plus items."""

    time_s: float = 3.0
    max_value: int = 4_000_000
    max_total: int = 128_000_000

    def for_input(self, num_chars: int) -> "Limits":
        """Return limits that leave room for a template to handle so long an input."""
        return Limits(
            time_s=self.time_s,
            max_value=max(self.max_value, 4 * num_chars),
            max_total=max(self.max_total, 32 * num_chars),
        )


class Rendering:
    """The state of one rendering: what is left of the limits, and how guarded text is read.

    Args:
        limits: the bounds.
        guarded: replaces risky characters of a string.
        restored: turns stand-ins back.
        originals: stand-in → character, filled while rendering goes on.
    """

    def __init__(
        self,
        limits: Limits,
        guarded: Callable[[str], str],
        restored: Callable[[str], str],
        originals: Mapping[str, str],
    ) -> None:
        self.guarded = guarded
        self.restored = restored
        self.originals = originals
        self._limits = limits
        self._deadline_s = time.monotonic() + limits.time_s
        self._total_left = limits.max_total
        # Containers by identity; holding them keeps an id from being used again.
        self._weights: dict[int, tuple[Any, int]] = {}

    def tick(self) -> None:
        """Raise LimitError when the time is over."""
        if time.monotonic() > self._deadline_s:
            raise LimitError(f"the template ran for more than {self._limits.time_s:g} s")

    def check(self, weight: int) -> None:
        """Raise LimitError for a value of this weight, before it is made."""
        if weight > self._limits.max_value:
            raise LimitError(
                f"the template made a value of over {self._limits.max_value} characters"
            )

    def weigh(self, value: Any) -> int:
        """Return the weight of a value; containers are walked once, then remembered."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return 1 + value.bit_length() // 3
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        self.tick()
        parts: Iterable[Any] = value
        if isinstance(value, dict):
            parts = (part for item in value.items() for part in item)
        weight = 1
        for part in parts:
            weight += max(1, self.weigh(part))
            self.check(weight)
        self._weights[id(value)] = (value, weight)
        return weight

    def made(self, value: Any) -> Any:
        """Take a new value out of the limits; return it."""
        weight = self.weigh(value)
        self.check(weight)
        self._total_left -= weight
        if self._total_left < 0:
            raise LimitError(f"the template made over {self._limits.max_total} characters in all")
        return value


def check_binop(rendering: Rendering, operator: str, left: Any, right: Any) -> None:
    """Raise LimitError for an operator whose result would be too large."""
    match operator:
        case "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
                    rendering.check(rendering.weigh(value) * max(count, 0))
            _check_bits(left, right, lambda a, b: a + b)
        case "**":
            _check_bits(left, right, lambda a, _: a * abs(right))
        case "%" if isinstance(left, str | bytes):
            values = right if isinstance(right, tuple) else (right,)
            text = left if isinstance(left, str) else left.decode("latin-1")
            check_format(rendering, text, "%", values)
        case "+" if isinstance(left, str | list | tuple):
            rendering.check(rendering.weigh(left) + rendering.weigh(right))
        case _:
            return


def _check_bits(left: Any, right: Any, bits: Callable[[int, int], int]) -> None:
    if isinstance(left, int) and isinstance(right, int):
        size = bits(left.bit_length(), right.bit_length())
        if size > _MAX_INT_BITS and left not in (0, 1, -1):
            raise LimitError(f"the template made a number of over {_MAX_INT_BITS} bits")


def check_format(rendering: Rendering, template: str, marker: str, values: Iterable[Any]) -> None:
    """Raise LimitError for a format whose result could be too long."""
    values = list(values)
    check_ints(values)
    if _WIDE_FIELD.search(template):
        raise LimitError("the template asks for a field of millions of characters")
    widest = max([1, *map(rendering.weigh, values)])
    if _VALUE_AS_WIDTH.search(template):
        if any(isinstance(value, list | tuple | dict) for value in values):
            raise LimitError("the template takes the width of a field from a list or a dict")
        widest = max([widest, *(abs(value) for value in values if isinstance(value, int))])
    widths = sum(map(int, _NUMBER.findall(template)))
    rendering.check(len(template) + widths + template.count(marker) * widest)


def check_strftime(rendering: Rendering, template: str) -> None:
    """Raise LimitError for a format of times whose result could be too long."""
    rendering.check(_STRFTIME_FACTOR * len(template))


def check_ints(values: Iterable[Any]) -> None:
    """Raise LimitError for a width or count that no text needs."""
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise LimitError(f"the template asks for a width of {value}")


def check_method(
    rendering: Rendering, receiver: str | bytes | int, name: str, args: tuple[Any, ...]
) -> None:
    """Raise LimitError for a method call whose result would be too long."""
    check_ints(args)
    if not isinstance(receiver, str):
        return
    if name == "replace" and len(args) >= 2:
        _check_replace(rendering, receiver, args[0], args[1])
    if name == "join" and args and isinstance(args[0], str | list | tuple | dict):
        rendering.check(rendering.weigh(args[0]) + len(receiver) * len(args[0]))


def _check_replace(rendering: Rendering, text: Any, old: Any, new: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    rendering.check(len(text) + text.count(old) * len(new))


def check_filter(rendering: Rendering, name: str, value: Any, settings: tuple[Any, ...]) -> None:
    """Raise LimitError for a filter whose result would be too long."""
    match name:
        case "join" if isinstance(value, list | tuple | dict | str):
            size = max((len(s) for s in settings if isinstance(s, str)), default=0)
            rendering.check(rendering.weigh(value) + size * len(value))
        case "replace" if len(settings) >= 2:
            _check_replace(rendering, value, settings[0], settings[1])
        case "format":
            check_format(rendering, str(value), "%", settings)
        case "indent" | "tojson":
            for setting in settings:
                if isinstance(setting, str | int) and _width(setting) > _MAX_INDENT:
                    raise LimitError(f"the template asks for an indent of {_width(setting)}")
            if name == "indent":
                width = max((_width(s) for s in settings if isinstance(s, str | int)), default=4)
                rendering.check(len(str(value)) + str(value).count("\n") * width)
        case _:
            return


def _width(setting: str | int) -> int:
    return len(setting) if isinstance(setting, str) else setting


def listed_within(rendering: Rendering, values: Iterator[Any]) -> list[Any]:
    """Return the items of an iterator, which are weighed as they come."""
    listed, weight = [], 0
    for value in values:
        rendering.tick()
        weight += max(1, rendering.weigh(value))
        rendering.check(weight)
        listed.append(value)
    return listed


def joined_within(rendering: Rendering, pieces: Iterable[str]) -> str:
    """Return the pieces as one string, which is measured as they come."""
    joined, size = [], 0
    for piece in pieces:
        rendering.tick()
        size += len(piece)
        rendering.check(size)
        joined.append(piece)
    return "".join(joined)
