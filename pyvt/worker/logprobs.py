"""Log probabilities of tokens, generated ones and those of prompts.

Dims: n rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import on_host, place
from pyvt.messages import TokenLogprobs
from pyvt.models.base import CausalLM

Array = np.ndarray[Any, Any]

# Rows of logits that exist at once for the tokens of prompts: 40 MB at a vocabulary of 152,000.
PROMPT_ROWS = 64


def token_logprobs(logits: Array, token_ids: Array, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Return the entry of ``token_ids`` ``[n]`` i64 and the best tokens of ``logits`` ``[n, V]``.

    Row i has ``num_top[i]`` best tokens; one that is masked is left out.
    """
    most = min(max(num_top), logits.shape[1])
    found = ops.top_logprobs(logits, place(token_ids, beside=logits), most)
    top_ids, top_values, values, ranks = map(on_host, found)
    is_kept = np.isfinite(top_values)
    entries = []
    for i, wanted in enumerate(num_top):
        kept = is_kept[i, :wanted]
        entries.append(
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
    return entries


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
        if on_host(ops.count_nonfinite(logits)).any():
            return None
        entries += token_logprobs(logits, next_ids[part], [num_top] * len(logits))
    return entries
