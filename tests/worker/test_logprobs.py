"""Log probabilities of prompts: what they hold in memory."""

import tracemalloc
from typing import Any

import numpy as np

from pyvt.worker.logprobs import prompt_logprobs, token_entries, top_entries

VOCAB_SIZE = 151_936


class WideHead:
    """A model whose logits are one row for all positions."""

    def __init__(self) -> None:
        self.row = np.linspace(-3, 3, VOCAB_SIZE, dtype=np.float32)

    def compute_logits(self, hidden: Any) -> Any:
        return np.repeat(self.row[None], len(hidden), axis=0)


def test_prompt_logprobs_of_a_wide_vocabulary_take_little_memory() -> None:
    hidden = np.zeros((200, 8), np.float32)
    next_ids = np.arange(200)
    model: Any = WideHead()
    tracemalloc.start()

    entries = prompt_logprobs(model, hidden, next_ids, 5)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert entries is not None
    assert len(entries) == 200
    assert peak < 200 << 20, "all rows at once are 122 MB, with their temporaries 360 MB"
    assert [i for i, _ in entries[7].top] == list(range(VOCAB_SIZE - 1, VOCAB_SIZE - 6, -1))


def test_entries_do_not_depend_on_how_many_are_asked_for() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    token_ids = np.array([4, 9, 2])

    few, many = (
        token_entries(token_ids, top_entries(logits, token_ids, num), [num] * 3) for num in (1, 20)
    )

    assert [e.logprob for e in few] == [e.logprob for e in many]
    assert [e.top[0] for e in few] == [e.top[0] for e in many]


def test_masked_tokens_are_left_out() -> None:
    logits = np.full((1, 6), -np.inf, np.float32)
    logits[0, [1, 4]] = [2.0, 2.0]

    token_ids = np.array([4])
    (entry,) = token_entries(token_ids, top_entries(logits, token_ids, 5), [5])

    assert [i for i, _ in entry.top] == [1, 4]
    assert (entry.rank, round(entry.logprob, 5)) == (2, -0.69315)
