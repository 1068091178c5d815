"""The bound of reasoning: what may be written in each of its states, whatever the tokens are."""

from typing import Any

import numpy as np
import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import ReasoningBudget
from pyvt.structured.reasoning_budget import BudgetGrammar, BudgetMatcher
from pyvt.testing.fakes import FakeTokenizer

CLOSING = "\n</think>\n\n"


def _grammar(max_tokens: int, *, is_open: bool = True) -> BudgetGrammar:
    budget = ReasoningBudget(max_tokens=max_tokens, is_open=is_open)
    return BudgetGrammar(budget, FakeTokenizer(), FakeTokenizer.vocab_size)


def _written(matcher: Any, wished: str, num: int = 40) -> str:
    """Return what a model writes that wishes a text and writes what is let through."""
    text, wishes = "", list(wished)
    for _ in range(num):
        (mask,) = matcher.masks((), 100)
        allowed = np.flatnonzero(mask)
        if len(allowed) == 1:
            token_id = int(allowed[0])
        elif wishes:
            token_id = ord(wishes.pop(0))
        else:
            break
        matcher.advance((token_id,))
        text += chr(token_id)
    return text


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_reasoning_ends_when_its_tokens_are_used_up(max_tokens: int) -> None:
    matcher = _grammar(max_tokens).start((), max_tokens=None)

    assert (
        _written(matcher, "abcdefghij")
        == "abcdefghij"[:max_tokens] + CLOSING + ("abcdefghij"[max_tokens:])
    )


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    matcher = _grammar(20).start((), max_tokens=None)
    text = "ab</think>" + "c" * 30

    assert _written(matcher, text, 100) == text


def test_model_that_opens_its_reasoning_is_counted_from_there() -> None:
    matcher = _grammar(3, is_open=False).start((), max_tokens=None)

    assert _written(matcher, "\n<think>abcdef") == f"\n<think>abc{CLOSING}def"


def test_model_that_does_not_reason_is_free() -> None:
    matcher = _grammar(0, is_open=False).start((), max_tokens=None)

    assert _written(matcher, "Yes <think>abc") == "Yes <think>abc"


@pytest.mark.parametrize("cut", range(12))
def test_state_is_that_of_the_tokens_so_far(cut: int) -> None:
    """A request that was preempted goes on as if it had not been."""
    whole = f"abc{CLOSING}def"
    ids = [ord(char) for char in whole]
    matcher = _grammar(3).start(ids[:cut], max_tokens=None)

    assert whole[:cut] + _written(matcher, whole.replace(CLOSING, "")[min(cut, 3) :]) == whole


def test_drafts_do_not_go_beyond_the_budget() -> None:
    matcher = _grammar(3).start((97,), max_tokens=None)
    assert isinstance(matcher, BudgetMatcher)

    assert matcher.filter_drafts((97, 97, 97, 97)) == (97, 97)
    assert matcher.masks((97, 97), 50).shape == (3, FakeTokenizer.vocab_size)
    matcher.advance((97, 97))
    assert matcher.filter_drafts((10,)) == ()
    matcher.advance(tuple(CLOSING.encode()))
    assert matcher.filter_drafts((97, 97, 97, 97)) == (97,) * 4


@pytest.mark.parametrize(
    "fields", [{"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": 1, "closing_text": "x"}]
)
def test_wrong_budgets_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="reasoning_budget"):
        ReasoningBudget(**fields)
