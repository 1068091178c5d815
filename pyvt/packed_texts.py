"""PackedTexts: many short texts in one piece.

A vocabulary has 50,000 to 250,000 texts and as many merges. A string object each takes ten times
the memory of its bytes, and to make them takes most of the time in which a small model loads.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

Offsets = np.ndarray[Any, np.dtype[np.uint32]]


class PackedTexts(Sequence[str]):
    """A sequence of texts that keeps their UTF-8 bytes and where each ends."""

    __slots__ = ("blob", "ends")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Pack ``texts``; halves of surrogate pairs are kept as they are."""
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        self.blob = b"".join(parts)
        self.ends: Offsets = np.cumsum([*map(len, parts)], dtype=np.uint32)

    @classmethod
    def of_bytes(cls, blob: bytes, ends: Offsets) -> "PackedTexts":
        """Return the texts whose bytes are ``blob``, one up to each of ``ends``."""
        texts = cls()
        texts.blob, texts.ends = blob, ends
        return texts

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self.ends))[index]
        return self._text(int(self.ends[i - 1]) if i else 0, int(self.ends[i]))

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self.ends.tolist():
            yield self._text(start, end)
            start = end

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedTexts):
            return self.blob == other.blob and np.array_equal(self.ends, other.ends)
        return [*self] == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"PackedTexts of {len(self)} texts, {len(self.blob)} bytes"

    def get(self, index: int) -> str | None:
        """Return a text by its index, None beyond the last."""
        return self[index] if 0 <= index < len(self) else None

    def _text(self, start: int, end: int) -> str:
        return self.blob[start:end].decode("utf-8", "surrogatepass")
