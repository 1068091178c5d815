"""A bound on the reasoning: when it is used up, the model can write nothing but its end.

Counted are the tokens between the opening and the closing mark. The closing text is let through
token by token, as the model itself would write it; what follows is free, or the request's grammar.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pyvt.messages import Grammar, Matcher
from pyvt.sampling_params import ReasoningBudget
from pyvt.structured.around import GrammarAround, MatcherAround
from pyvt.tokenizer.base import Tokenizer

Array = np.ndarray[Any, Any]

_State = Literal["before", "reasoning", "closing", "behind"]


@dataclass(frozen=True, slots=True, eq=False)
class BudgetGrammar(GrammarAround):
    """A grammar of reasoning within its budget, and of what follows.

    Attributes:
        budget: the marks and the number of tokens.
        tokenizer: the model's.
        vocab_size: V, ids of the model's logits.
        inner: of the whole text, None where it is free.
    """

    budget: ReasoningBudget
    tokenizer: Tokenizer
    vocab_size: int
    inner: Grammar | None = None

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> Matcher:
        """Return the state behind what a request has generated."""
        matcher = BudgetMatcher(self, self.start_inner(token_ids, max_tokens))
        matcher.follow(token_ids)
        return matcher


class BudgetMatcher(MatcherAround):
    """The state of one request."""

    def __init__(self, grammar: BudgetGrammar, inner: Matcher | None) -> None:
        super().__init__(grammar.vocab_size, inner)
        budget = grammar.budget
        self._grammar = grammar
        self._text = b""
        self._num = 0
        self._closing: deque[int] = deque()
        self._state: _State = "reasoning" if budget.is_open else "before"
        if budget.is_open and budget.max_tokens == 0:
            self._close()

    def masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool."""
        allowed = self.inner_masks(drafts, num_left)
        if self._state == "closing" and allowed[0, self._closing[0]]:
            allowed[0] = False
            allowed[0, self._closing[0]] = True
        return allowed

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that is not allowed; the state does not change."""
        if self._state == "closing":
            return ()
        if self._state != "behind":
            drafts = drafts[: max(0, self._grammar.budget.max_tokens - self._num)]
        return self.inner_drafts(drafts)

    def follow(self, token_ids: Sequence[int]) -> None:
        """Note where in its reasoning the text is; a grammar inside has taken the tokens."""
        for token_id in token_ids:
            if self._state == "behind":
                return
            self._text += self._grammar.tokenizer.token_bytes(token_id)
            if self._state == "before":
                self._look_for_opening()
            else:
                self._count(token_id)

    def _look_for_opening(self) -> None:
        opening, seen = self._grammar.budget.opening.encode(), self._text.lstrip()
        if seen.startswith(opening):
            self._text, self._state = seen[len(opening) :], "reasoning"
            if self._grammar.budget.max_tokens == 0:
                self._close()
        elif not opening.startswith(seen):
            self._state = "behind"

    def _count(self, token_id: int) -> None:
        self._num += 1
        budget = self._grammar.budget
        mark = budget.closing.encode()
        has_ended = mark in self._text
        self._text = self._text[-len(mark) :]
        if self._state == "closing" and self._closing[0] == token_id:
            self._closing.popleft()
            if not self._closing:
                self._state = "behind"
        elif has_ended:
            self._state = "behind"
        elif self._num >= budget.max_tokens:
            self._close()

    def _close(self) -> None:
        """From here on only the closing text is let through."""
        text = self._grammar.budget.closing_text
        ids = self._grammar.tokenizer.encode(text, add_special_tokens=False)
        self._closing = deque(ids)
        self._state = "closing"
