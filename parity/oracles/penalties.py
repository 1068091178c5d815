"""Oracles of the penalties family."""

import torch
from transformers.generation.logits_process import (
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from parity.oracles.oracle import Arrays, Oracle, wide

NO_IDS = torch.zeros((1, 1), dtype=torch.int64)


def _tokens_of_rows(a: Arrays) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    for r, token in zip(a["row_ids"].tolist(), a["token_ids"].tolist(), strict=True):
        tokens.setdefault(r, []).append(token)
    return tokens


def _apply_logit_bias(a: Arrays) -> Arrays:
    out = wide(a["logits"])
    for r, token, bias in zip(a["row_ids"], a["token_ids"], a["bias"], strict=True):
        processor = SequenceBiasLogitsProcessor([[[int(token)], float(bias)]])
        out[r] = processor(NO_IDS, out[r : r + 1])[0]
    return {"out": out.numpy()}


def _apply_banned_ids(a: Arrays) -> Arrays:
    out = wide(a["logits"])
    for r, tokens in _tokens_of_rows(a).items():
        out[r] = SuppressTokensLogitsProcessor(tokens)(NO_IDS, out[r : r + 1])[0]
    return {"out": out.numpy()}


def _apply_allowed_ids(a: Arrays) -> Arrays:
    out = wide(a["logits"])
    for r, tokens in _tokens_of_rows(a).items():
        processor = PrefixConstrainedLogitsProcessor(lambda _, __, allowed=tokens: allowed, 1)
        out[r] = processor(NO_IDS, out[r : r + 1])[0]
    return {"out": out.numpy()}


def _apply_token_mask(a: Arrays) -> Arrays:
    return {"out": wide(a["logits"]).masked_fill(~wide(a["mask"]), -torch.inf).numpy()}


def _apply_penalties(a: Arrays) -> Arrays:
    out, rows, tokens = wide(a["logits"]), wide(a["row_ids"]), wide(a["token_ids"])
    counts = torch.zeros_like(out)
    made = wide(a["is_output"])
    counts.index_put_((rows[made], tokens[made]), torch.ones(()).double(), accumulate=True)
    for r, penalty in enumerate(a["repetition"].tolist()):
        ids = tokens[rows == r][None]
        out[r] = RepetitionPenaltyLogitsProcessor(penalty)(ids, out[r : r + 1])[0]
    out -= wide(a["frequency"])[:, None] * counts
    out -= wide(a["presence"])[:, None] * (counts > 0)
    return {"out": out.numpy()}


ORACLES = {
    "apply_logit_bias": Oracle("transformers SequenceBiasLogitsProcessor", _apply_logit_bias),
    "apply_banned_ids": Oracle("transformers SuppressTokensLogitsProcessor", _apply_banned_ids),
    "apply_allowed_ids": Oracle(
        "transformers PrefixConstrainedLogitsProcessor", _apply_allowed_ids
    ),
    "apply_token_mask": Oracle("torch.Tensor.masked_fill", _apply_token_mask),
    "apply_penalties": Oracle(
        "transformers RepetitionPenaltyLogitsProcessor; presence and frequency: SELF "
        "x - c * frequency - (c > 0) * presence (OpenAI API reference)",
        _apply_penalties,
    ),
}
