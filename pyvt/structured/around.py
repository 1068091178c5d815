"""What grammars have in common that are put around another one, or around free text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyvt.messages import Grammar, Matcher

Array = np.ndarray[Any, Any]


class GrammarAround:
    """A grammar around ``inner``, None where the text is free."""

    __slots__ = ()
    inner: Grammar | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is left out of what was asked for."""
        return () if self.inner is None else self.inner.warnings

    @property
    def shortest(self) -> int:
        """Tokens that a text needs at least: free text may end at once."""
        return 0 if self.inner is None else self.inner.shortest

    def start_inner(self, token_ids: Sequence[int], max_tokens: int | None) -> Matcher | None:
        """Return the state of ``inner`` behind what a request has generated."""
        return None if self.inner is None else self.inner.start(token_ids, max_tokens=max_tokens)


class MatcherAround(ABC):
    """The state of one request, around that of its own grammar.

    Args:
        vocab_size: V, ids of the model's logits.
        inner: None where the text is free.
    """

    def __init__(self, vocab_size: int, inner: Matcher | None) -> None:
        self._vocab_size = vocab_size
        self._inner = inner

    @property
    def error(self) -> str | None:
        """Why the text cannot go on, None while it can."""
        return None if self._inner is None else self._inner.error

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._inner is not None and self._inner.is_complete

    def inner_masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return what the inner grammar allows now and behind each draft, ``[1 + n, V]`` bool."""
        if self._inner is None:
            return np.ones((1 + len(drafts), self._vocab_size), np.bool_)
        allowed: Array = self._inner.masks(drafts, num_left)
        return allowed

    def inner_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts that the inner grammar allows."""
        return tuple(drafts) if self._inner is None else self._inner.filter_drafts(drafts)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were generated."""
        if self._inner is not None:
            self._inner.advance(token_ids)
        self.follow(token_ids)

    @abstractmethod
    def follow(self, token_ids: Sequence[int]) -> None:
        """Take tokens that the inner grammar has taken."""
