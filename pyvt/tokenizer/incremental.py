"""Streaming detokenization: ids in one by one, text out as soon as it is certain.

The work is done on bytes, never on the text of single tokens, so the pieces of any split join to
the one-shot text. An incomplete character is held back until its bytes are complete, or are known
to be invalid: then they give one U+FFFD for each maximal invalid part, as
``bytes.decode("utf-8", "replace")`` does.
"""

from collections.abc import Iterable
from encodings.utf_8 import IncrementalDecoder

from pyvt.tokenizer.base import Tokenizer


class IncrementalDetokenizer:
    """The text of one growing sequence of ids; push every id once, in order, then flush."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = IncrementalDecoder("replace")
        self._strip_next_space = tokenizer.strips_first_space

    def push(self, token_id: int) -> str:
        """Return the text that became certain with this id; empty while a character is open."""
        if token_id in self._hidden_ids:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        is_whole = data.isascii() and not self._decoder.buffer
        text = data.decode("ascii") if is_whole else self._decoder.decode(data)
        return self._trimmed(text) if self._strip_next_space else text

    def flush(self) -> str:
        """End the sequence: return U+FFFD for a character that never became whole, else nothing."""
        return self._trimmed(self._decoder.decode(b"", final=True))

    def _trimmed(self, text: str) -> str:
        if text and self._strip_next_space:
            self._strip_next_space = False
            return text.removeprefix(" ")
        return text


def decode_ids(tokenizer: Tokenizer, ids: Iterable[int], skip_special_tokens: bool) -> str:
    """Return the text of all ids at once: the sum of what the incremental form gives."""
    hidden_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
    data = b"".join(
        tokenizer.token_bytes(token_id) for token_id in ids if token_id not in hidden_ids
    )
    text = data.decode("utf-8", "replace")
    return text.removeprefix(" ") if tokenizer.strips_first_space else text
