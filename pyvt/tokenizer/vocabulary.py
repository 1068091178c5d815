"""Ids, their texts and their bytes: the part that all tokenizers share.

Spellings of a token's bytes, by name:

1. ``byte_level`` (GPT-2): one character a byte. Bytes 33-126, 161-172 and 174-255 are the character
   of that code, the other 68 are U+0100, U+0101, … in the order of the bytes.
2. ``spaced`` (SentencePiece): UTF-8 text with ▁ for a space; ``<0xXX>`` is one byte.

Added tokens are plain UTF-8 text in both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Spelling = Literal["byte_level", "spaced"]

_SAME_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHER_BYTES = tuple(sorted(set(range(256)) - set(_SAME_BYTES)))
BYTE_OF_CHAR = {chr(byte): byte for byte in _SAME_BYTES} | {
    chr(0x100 + rank): byte for rank, byte in enumerate(_OTHER_BYTES)
}
SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes(map(BYTE_OF_CHAR.__getitem__, piece))
    except KeyError:  # a piece outside the alphabet is its own text
        return piece.encode()


def _spaced_bytes(piece: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(piece):
        return bytes((int(match[1], 16),))
    return piece.replace(SPACE_MARK, " ").encode()


_BYTES_OF: Mapping[Spelling, Callable[[str], bytes]] = {
    "byte_level": _byte_level_bytes,
    "spaced": _spaced_bytes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything about a vocabulary except how a text is cut into it.

    Attributes:
        size: one more than the highest id.
        text_of: id → text as the file spells it; None for a hole or a padding row.
        spelling: how texts that are not added tokens spell bytes.
        added: id → text of added tokens, which match literally and whole.
        special_ids: ids that ``skip_special_tokens`` leaves out.
        eos_token_ids: ids that end a generation.
        bos_token_id: the id of a beginning, if there is one.
        specials: texts of bos_token, eos_token, pad_token, unk_token where they exist.
        strips_first_space: whether a decoded text loses one leading space.
        unused_ids: ids below ``size`` that stand for no token.
        unknown_id: the id a model gives for what it cannot spell, if any.
    """

    size: int
    text_of: Callable[[int], str | None]
    spelling: Spelling
    added: Mapping[int, str]
    special_ids: frozenset[int]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    unknown_id: int | None
    specials: Mapping[str, str]
    strips_first_space: bool = False
    unused_ids: frozenset[int] = frozenset()

    @property
    def control(self) -> dict[int, str]:
        """Added tokens that a caller's string must never turn into: all but runs of whitespace."""
        return {
            token_id: text
            for token_id, text in self.added.items()
            if token_id in self.special_ids or text.replace(SPACE_MARK, " ").strip()
        }

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of an id; none for an id without a text."""
        added = self.added.get(token_id)
        if added is not None:
            return added.encode()
        text = self.text_of(token_id)
        return b"" if text is None else _BYTES_OF[self.spelling](text)
