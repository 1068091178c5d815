"""Oracles of the sampling family: transformers' logits processors, one row at a time."""

import math
from itertools import pairwise, takewhile

import numpy as np
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parity.oracles.oracle import Arrays, Oracle, wide

MASK = 2**64 - 1


def warp(logits: torch.Tensor, rows: list[list[LogitsProcessor]]) -> Arrays:
    """Apply each row's processors to it, in order, without token ids."""
    out = logits.clone()
    for r, processors in enumerate(rows):
        for processor in processors:
            out[r] = processor(None, out[r : r + 1])[0]
    return {"out": out.numpy()}


def _apply_temperature(a: Arrays) -> Arrays:
    values = a["temperature"].tolist()
    return warp(wide(a["logits"]), [[TemperatureLogitsWarper(t)] if t else [] for t in values])


def _apply_min_p(a: Arrays) -> Arrays:
    values = a["min_p"].tolist()
    return warp(wide(a["logits"]), [[MinPLogitsWarper(p)] if p else [] for p in values])


def _apply_top_k_top_p(a: Arrays) -> Arrays:
    pairs = zip(a["top_k"].tolist(), a["top_p"].tolist(), strict=True)
    rows = [
        ([TopKLogitsWarper(k)] if k > 0 else []) + ([TopPLogitsWarper(p)] if p < 1 else [])
        for k, p in pairs
    ]
    return warp(wide(a["logits"]), rows)


def _splitmix64(state: int, index: int) -> int:
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    return _mix(z)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _random_sample(a: Arrays) -> Arrays:
    ids = []
    for row, seed, position in zip(a["logits"], a["seeds"], a["positions"], strict=True):
        state = _splitmix64(_mix(int(seed)), int(position))
        scores = [
            x - math.log(-math.log(((_splitmix64(state, i) >> 12) + 0.5) * 2.0**-52))
            for i, x in enumerate(row.tolist())
        ]
        ids.append(scores.index(max(scores)))
    return {"out": torch.tensor(ids, dtype=torch.int64).numpy()}


def _rejection_sample(a: Arrays) -> Arrays:
    sums = a["cu_num_drafts"].tolist()
    results = []
    for r, (start, end) in enumerate(pairwise(sums)):
        tokens, drafts = a["token_ids"][start + r :].tolist(), a["draft_ids"][start:end].tolist()
        kept = list(takewhile(lambda pair: pair[0] == pair[1], zip(tokens, drafts, strict=False)))
        results.append(tokens[: len(kept) + 1])
    width = 1 + max((end - start for start, end in pairwise(sums)), default=0)
    rows = [[*tokens, *[-1] * (width - len(tokens))] for tokens in results]
    return {
        "out0": np.array(rows, np.int64).reshape(len(rows), width),
        "out1": np.array([len(tokens) for tokens in results], np.int64),
    }


ORACLES = {
    "count_nonfinite": Oracle(
        "torch.isfinite", lambda a: {"out": (~wide(a["logits"]).isfinite()).sum(-1).numpy()}
    ),
    "apply_temperature": Oracle("transformers TemperatureLogitsWarper", _apply_temperature),
    "apply_min_p": Oracle("transformers MinPLogitsWarper", _apply_min_p),
    "apply_top_k_top_p": Oracle(
        "transformers TopKLogitsWarper, TopPLogitsWarper", _apply_top_k_top_p
    ),
    "argmax": Oracle("torch.argmax", lambda a: {"out": wide(a["logits"]).argmax(-1).numpy()}),
    "random_sample": Oracle("SELF: Gumbel-max over SplitMix64 in Python integers", _random_sample),
    "rejection_sample": Oracle("SELF: the common beginning in Python lists", _rejection_sample),
}
