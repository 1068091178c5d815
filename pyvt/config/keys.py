"""Typed reads of the keys of a model's config, with errors that name the key and its value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyvt.errors import ConfigError, did_you_mean

_MAX_SIZE = 2**31 - 1


class Keys:
    """Reads from one or more dicts; the first that holds a key with a value other than null wins.

    ``subject`` is the name of the file or block in error texts, ``prefix`` is put before each key.
    """

    __slots__ = ("_prefix", "_sources", "_subject")

    def __init__(self, subject: str, *sources: Mapping[str, Any] | None, prefix: str = "") -> None:
        self._subject = subject
        self._sources = [source for source in sources if source is not None]
        self._prefix = prefix

    def get(self, name: str) -> Any:
        """Return the value of a key, None where it is absent or null."""
        key = self._prefix + name
        return next((s[key] for s in self._sources if s.get(key) is not None), None)

    def error(self, name: str, expected: str, got: Any) -> ConfigError:
        """Return the error for the value of a key; the caller raises it."""
        key = self._prefix + name
        return ConfigError(f"[{self._subject}] {key}: expected {expected}, got {got!r}", field=key)

    def _of(self, name: str, default: Any, kinds: tuple[type, ...], expected: str) -> Any:
        value = self.get(name)
        if value is None:
            if default is not None:
                return default
            raise self.error(name, expected, None)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(name, expected, value)
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer; a key without a default is required."""
        value = self._of(name, default, (int, float), "an integer")
        if isinstance(value, float) and not value.is_integer():
            raise self.error(name, "an integer", value)
        return int(value)

    def _within(self, name: str, default: int | None, low: int, high: int) -> int:
        value = self.integer(name, default)
        if not low <= value <= high:
            raise self.error(name, f"an integer from {low} to {high}", value)
        return value

    def size(self, name: str, default: int | None = None, limit: int = _MAX_SIZE) -> int:
        """Return an integer from 1 to ``limit``; a key without a default is required."""
        return self._within(name, default, 1, limit)

    def count(self, name: str, default: int | None = None, limit: int = _MAX_SIZE) -> int:
        """Return an integer from 0 to ``limit``; a key without a default is required."""
        return self._within(name, default, 0, limit)

    def even_size(self, name: str, default: int) -> int:
        """Return an even integer of at least two."""
        value = self.size(name, default)
        if value % 2:
            raise self.error(name, "an even number", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number above zero; a key without a default is required."""
        value = self._float(self._of(name, default, (int, float), "a number above 0"))
        if not math.isfinite(value) or value <= 0:
            raise self.error(name, "a finite number above 0", value)
        return value

    def optional_number(self, name: str) -> float | None:
        """Return a finite number, None where the key is absent."""
        if self.get(name) is None:
            return None
        value = self._float(self._of(name, None, (int, float), "a number"))
        if not math.isfinite(value):
            raise self.error(name, "a finite number", value)
        return value

    @staticmethod
    def _float(value: float) -> float:
        """Return a number as a float, one beyond its range as an infinity."""
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        return bool(self._of(name, default, (bool,), "true or false"))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string; a key without a default is required."""
        return str(self._of(name, default, (str,), "a string"))

    def ids(self, name: str) -> tuple[int, ...]:
        """Return token ids from an integer or a list of integers, empty where absent."""
        value = self.get(name)
        if value is None:
            return ()
        found = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in found):
            raise self.error(name, "a token id or a list of token ids", value)
        return found

    def items(self, name: str) -> tuple[Any, ...]:
        """Return a list, empty where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise self.error(name, "a list", value)
        return tuple(value or ())

    def block(self, name: str) -> dict[str, Any] | None:
        """Return a nested object, None where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object", value)
        return value

    def layer_size(self, name: str, default: int | None = None, *, has_zeros: bool = False) -> int:
        """Return a size that may be written once for all layers or once for each, all equal.

        With ``has_zeros`` a layer without it may have 0.
        """
        value = self.get(name)
        if isinstance(value, (list, tuple)):
            if has_zeros:
                value = [item for item in value if item != 0]
            if not value or any(item != value[0] for item in value):
                raise self.error(name, "one value for all layers", value)
            return Keys(self._subject, {name: value[0]}).size(name)
        return self.size(name, default)


def unknown_name(subject: str, field: str, name: Any, known: Sequence[str]) -> str:
    """Return the error text for a name that is none of the known ones."""
    return f"[{subject}] {field}: {name!r} is not supported; {did_you_mean(str(name), known)}"
