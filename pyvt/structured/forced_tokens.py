"""Tokens that a request must generate, one after the other, whatever the model says; for tests.

They take the place of a model that finds them likeliest: beside a grammar one that is not allowed
is not generated, and none behind it is forced. Behind the last of them the text is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.messages import Grammar, Matcher
from pyvt.structured.around import GrammarAround, MatcherAround

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class ForcedTokens(GrammarAround):
    """A grammar of one text, told as its tokens.

    Attributes:
        token_ids: the tokens.
        vocab_size: V, ids of the model's logits.
        inner: what the text must be, None where it is free.
    """

    token_ids: tuple[int, ...]
    vocab_size: int
    inner: Grammar | None = None

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> "ForcedMatcher":
        """Return the state behind what a request has generated."""
        matcher = ForcedMatcher(self, self.start_inner(token_ids, max_tokens))
        matcher.follow(token_ids)
        return matcher


class ForcedMatcher(MatcherAround):
    """How far one request has come."""

    def __init__(self, forced: ForcedTokens, inner: Matcher | None) -> None:
        super().__init__(forced.vocab_size, inner)
        self._left = forced.token_ids

    def masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool."""
        allowed = self.inner_masks(drafts, num_left)
        for row, token_id in zip(allowed, self._left, strict=False):
            if not row[token_id]:
                break
            row[:] = False
            row[token_id] = True
        return allowed

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that is not forced; the state does not change."""
        drafts = self.inner_drafts(drafts)
        left = self._left
        wrong = (
            i for i, (draft, own) in enumerate(zip(drafts, left, strict=False)) if draft != own
        )
        return drafts[: next(wrong, len(drafts))]

    def follow(self, token_ids: Sequence[int]) -> None:
        """Note which tokens were the forced ones; a grammar inside has taken them."""
        for token_id in token_ids:
            is_forced = bool(self._left) and self._left[0] == token_id
            self._left = self._left[1:] if is_forced else ()
