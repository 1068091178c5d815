"""Tokens that a request must generate, one after the other, whatever the model says; for tests.

Behind the last of them the text is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ForcedTokens:
    """A grammar of one text, told as its tokens."""

    token_ids: tuple[int, ...]
    vocab_size: int
    warnings: tuple[str, ...] = ()

    @property
    def shortest(self) -> int:
        """Tokens that a text needs at least: a request may end before."""
        return 0

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> "ForcedMatcher":
        """Return the state behind what a request has generated."""
        return ForcedMatcher(self, len(token_ids))


class ForcedMatcher:
    """How far one request has come."""

    error: str | None = None
    is_complete = False

    def __init__(self, forced: ForcedTokens, num_taken: int) -> None:
        self._forced = forced
        self._num_taken = num_taken

    def masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool."""
        allowed = np.ones((1 + len(drafts), self._forced.vocab_size), np.bool_)
        for row, token_id in zip(allowed, self._left, strict=False):
            row[:] = False
            row[token_id] = True
        return allowed

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that is not forced; the state does not change."""
        left = self._left
        wrong = (
            i for i, (draft, own) in enumerate(zip(drafts, left, strict=False)) if draft != own
        )
        return tuple(drafts[: next(wrong, len(drafts))])

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were generated."""
        self._num_taken += len(token_ids)

    @property
    def _left(self) -> tuple[int, ...]:
        return self._forced.token_ids[self._num_taken :]
