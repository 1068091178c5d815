"""Searching a text that is still growing."""

from collections.abc import Iterable


def first_of(text: str, words: Iterable[str]) -> tuple[int, str]:
    """Return where the first of the words begins, and the word; ``(-1, "")`` for none.

    Of words that begin together the longest counts.
    """
    found = [(at, -len(word), word) for word in words if (at := text.find(word)) >= 0]
    if not found:
        return -1, ""
    at, _, word = min(found)
    return at, word


def num_open(text: str, words: Iterable[str]) -> int:
    """Return the length of the longest end of ``text`` that more text could make one of the words.

    A whole word is not open.
    """
    words = tuple(words)
    longest = max(map(len, words), default=0)
    for length in range(min(len(text), longest - 1), 0, -1):
        end = text[len(text) - length :]
        if any(len(word) > length and word.startswith(end) for word in words):
            return length
    return 0
