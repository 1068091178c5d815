"""Tokens that a request must generate, one after the other, whatever the model says; for tests.

They take the place of a model that finds them likeliest: beside a grammar one that is not allowed
is not generated, and none behind it is forced. Behind the last of them the text is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.messages import Grammar, Matcher

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ForcedTokens:
    """A grammar of one text, told as its tokens.

    Attributes:
        token_ids: the tokens.
        vocab_size: V, ids of the model's logits.
        inner: what the text must be, None where it is free.
    """

    token_ids: tuple[int, ...]
    vocab_size: int
    inner: Grammar | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is left out of what was asked for."""
        return () if self.inner is None else self.inner.warnings

    @property
    def shortest(self) -> int:
        """Tokens that a text needs at least: without a grammar it may end before."""
        return 0 if self.inner is None else self.inner.shortest

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> "ForcedMatcher":
        """Return the state behind what a request has generated."""
        inner = None if self.inner is None else self.inner.start(token_ids, max_tokens=max_tokens)
        matcher = ForcedMatcher(self, inner)
        matcher.follow(token_ids)
        return matcher


class ForcedMatcher:
    """How far one request has come."""

    def __init__(self, forced: ForcedTokens, inner: Matcher | None) -> None:
        self._vocab_size = forced.vocab_size
        self._left = forced.token_ids
        self._inner = inner

    @property
    def error(self) -> str | None:
        """Why the text cannot go on, None while it can."""
        return None if self._inner is None else self._inner.error

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner is not None and self._inner.is_complete

    def masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool."""
        if self._inner is None:
            allowed = np.ones((1 + len(drafts), self._vocab_size), np.bool_)
        else:
            allowed = self._inner.masks(drafts, num_left)
        for row, token_id in zip(allowed, self._left, strict=False):
            if not row[token_id]:
                break
            row[:] = False
            row[token_id] = True
        return allowed

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that is not forced; the state does not change."""
        if self._inner is not None:
            drafts = self._inner.filter_drafts(drafts)
        left = self._left
        wrong = (
            i for i, (draft, own) in enumerate(zip(drafts, left, strict=False)) if draft != own
        )
        return tuple(drafts[: next(wrong, len(drafts))])

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were generated."""
        if self._inner is not None:
            self._inner.advance(token_ids)
        self.follow(token_ids)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Note which tokens were the forced ones; a grammar inside has taken them."""
        for token_id in token_ids:
            is_forced = bool(self._left) and self._left[0] == token_id
            self._left = self._left[1:] if is_forced else ()
