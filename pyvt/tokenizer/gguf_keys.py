"""Checked access to the ``tokenizer.ggml.*`` keys of GGUF metadata.

A value may be a list, a NumPy array or PackedTexts, as the reader gives it. Every failure is a
CheckpointError that names the key.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.packed_texts import PackedTexts

PREFIX = "tokenizer.ggml."


def _fail(key: str, expected: str, got: object, remedy: str = "") -> CheckpointError:
    text = f"[gguf tokenizer] {PREFIX}{key}: expected {expected}, got {got}"
    return CheckpointError(f"{text}; {remedy}" if remedy else text)


class TokenizerKeys:
    """The metadata of one file; each method reads one key of one type."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def fail(self, key: str, expected: str, got: object, remedy: str = "") -> CheckpointError:
        """Return the error for a key."""
        return _fail(key, expected, got, remedy)

    def text(self, key: str) -> str:
        """Return a string that must be there."""
        value = self._required(key, "a string")
        if not isinstance(value, str):
            raise _fail(key, "a string", _kind(value))
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean, or the default where the key is absent."""
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise _fail(key, "a boolean", _kind(value))
        return bool(value)

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """Return an id below ``num_tokens``, or None where the key is absent."""
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise _fail(key, "an integer", _kind(value))
        if not 0 <= int(value) < num_tokens:
            raise _fail(key, f"an id below {num_tokens}", int(value))
        return int(value)

    def texts(self, key: str) -> PackedTexts:
        """Return an array of strings that must be there."""
        values = self._required(key, "an array of strings")
        if isinstance(values, PackedTexts):
            return values
        if not isinstance(values, list | tuple | np.ndarray):
            raise _fail(key, "an array of strings", _kind(values))
        if set(map(type, values)) - {str}:
            for idx, value in enumerate(values):
                if not isinstance(value, str):
                    raise _fail(key, "an array of strings", f"{_kind(value)} at index {idx}")
        return PackedTexts(values)

    def numbers(self, key: str, count: int, kind: str) -> np.ndarray[Any, Any]:
        """Return an array of ``count`` numbers; ``kind`` is "integers" or "floats".

        Any integer type will do for integers; floats must be floats.
        """
        values = self._required(key, f"an array of {kind}")
        if not isinstance(values, list | tuple | np.ndarray):
            raise _fail(key, f"an array of {kind}", _kind(values))
        array = np.asarray(values)
        if array.dtype.kind not in {"integers": "iu", "floats": "f"}[kind] and len(array):
            raise _fail(key, f"an array of {kind}", f"an array of {array.dtype}")
        if array.shape != (count,):
            raise _fail(key, f"one value for each of {count} tokens", f"{len(array)} values")
        if kind == "floats" and not np.isfinite(array).all():
            raise _fail(key, "finite numbers", "NaN or infinity")
        return array

    def _required(self, key: str, expected: str) -> Any:
        value = self._metadata.get(PREFIX + key)
        if value is None:
            raise _fail(key, expected, "nothing", "convert the model again with its tokenizer")
        return value


def _kind(value: object) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
