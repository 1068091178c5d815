"""Log probabilities of tokens, generated ones and those of prompts.

Dims: n rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import fetch, place
from pyvt.messages import TokenLogprobs
from pyvt.models.base import CausalLM

Array = np.ndarray[Any, Any]

# Rows of logits that exist at once for the tokens of prompts: 40 MB at a vocabulary of 152,000.
PROMPT_ROWS = 64


def top_entries(logits: Array, token_ids: Array, num_top: int) -> tuple[Array, ...]:
    """Return what ``token_entries`` reads, beside ``logits`` ``[n, V]``; nothing waits.

    ``token_ids`` ``[n]`` i64 are beside them too.
    """
    found: tuple[Array, ...] = ops.top_logprobs(logits, token_ids, min(num_top, logits.shape[1]))
    return found


def token_entries(
    token_ids: Array, entries: Sequence[Array], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Return the entry of each of ``token_ids`` ``[n]`` i64, from ``top_entries`` on the host.

    Row i has ``num_top[i]`` best tokens; one that is masked is left out.
    """
    top_ids, top_values, values, ranks = entries
    is_kept = np.isfinite(top_values)
    made = []
    for i, wanted in enumerate(num_top):
        kept = is_kept[i, :wanted]
        made.append(
            TokenLogprobs(
                token_id=int(token_ids[i]),
                logprob=float(values[i]),
                rank=int(ranks[i]),
                top=tuple(
                    zip(
                        top_ids[i, :wanted][kept].tolist(),
                        top_values[i, :wanted][kept].tolist(),
                        strict=True,
                    )
                ),
            )
        )
    return made


def prompt_logprobs(
    model: CausalLM, hidden: Array, next_ids: Array, num_top: int
) -> list[TokenLogprobs] | None:
    """Return an entry for each of ``hidden`` ``[n, H]``; None where a logit is not finite.

    ``next_ids`` ``[n]`` i64 are the tokens that follow in the prompt. The logits exist for
    ``PROMPT_ROWS`` rows at a time.
    """
    entries: list[TokenLogprobs] = []
    for start in range(0, len(hidden), PROMPT_ROWS):
        part = slice(start, start + PROMPT_ROWS)
        logits = model.compute_logits(hidden[part])
        found = top_entries(logits, place(next_ids[part], beside=logits), num_top)
        num_bad, *rows = fetch([ops.count_nonfinite(logits), *found]).arrays()
        if num_bad.any():
            return None
        entries += token_entries(next_ids[part], rows, [num_top] * len(logits))
    return entries
