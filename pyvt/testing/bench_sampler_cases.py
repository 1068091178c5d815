"""Timed calls of the ops on rows of logits, as long as the vocabulary of Qwen3."""

from collections.abc import Callable, Iterator

import numpy as np

from pyvt import ops
from pyvt.testing.bench_case import Array, BenchCase, Call

VOCAB = 151936
# Tokens of a row that a bias or a ban names, alternatives that are told, drafts that are verified.
N_NAMED, N_TOP, N_DRAFTS = 32, 20, 4

Make = Callable[[np.random.Generator, Array], Call]


def sampler_cases(num_rows: int) -> Iterator[BenchCase]:
    """Yield the ops on so many rows of logits, f32."""
    row_bytes = 4 * num_rows * VOCAB
    # What is read, or read and written, of the logits, and what else.
    table: dict[str, tuple[Make, int]] = {
        "argmax": (_argmax, row_bytes),
        "count_nonfinite": (_count_nonfinite, row_bytes),
        "log_softmax": (_log_softmax, 2 * row_bytes),
        "top_logprobs": (_top_logprobs, row_bytes),
        "random_sample": (_random_sample, row_bytes),
        "apply_temperature": (_temperature, 2 * row_bytes),
        "apply_min_p": (_min_p, 2 * row_bytes),
        "apply_top_k_top_p": (_top_k_top_p, 2 * row_bytes),
        "apply_penalties": (_penalties, 2 * row_bytes + num_rows * VOCAB * 8),
        "apply_token_mask": (_token_mask, 2 * row_bytes + num_rows * VOCAB),
        "apply_logit_bias": (_logit_bias, 2 * row_bytes),
        "apply_banned_ids": (_banned_ids, 2 * row_bytes),
        "apply_allowed_ids": (_allowed_ids, 2 * row_bytes),
    }
    for op, (make, num_bytes) in table.items():
        yield BenchCase(
            op=op, case=f"{num_rows}x{VOCAB}", make=_on_logits(make, num_rows), num_bytes=num_bytes
        )
    yield BenchCase(
        op="rejection_sample",
        case=f"{num_rows} x {N_DRAFTS} drafts",
        make=_rejection(num_rows),
        num_bytes=8 * num_rows * (3 * N_DRAFTS + 3),
    )


def _on_logits(make: Make, num_rows: int) -> Callable[[np.random.Generator], Call]:
    return lambda rng: make(rng, rng.standard_normal((num_rows, VOCAB), np.float32) * np.float32(3))


def _argmax(rng: np.random.Generator, x: Array) -> Call:
    return lambda: ops.argmax(x)


def _count_nonfinite(rng: np.random.Generator, x: Array) -> Call:
    return lambda: ops.count_nonfinite(x)


def _log_softmax(rng: np.random.Generator, x: Array) -> Call:
    return lambda: ops.log_softmax(x)


def _top_logprobs(rng: np.random.Generator, x: Array) -> Call:
    token_ids = rng.integers(0, VOCAB, len(x))
    return lambda: ops.top_logprobs(x, token_ids, N_TOP)


def _random_sample(rng: np.random.Generator, x: Array) -> Call:
    seeds, positions = np.arange(len(x), dtype=np.uint64), np.zeros(len(x), np.int64)
    return lambda: ops.random_sample(x, seeds, positions)


def _temperature(rng: np.random.Generator, x: Array) -> Call:
    temperature = np.full(len(x), 0.7)
    return lambda: ops.apply_temperature(x, temperature)


def _min_p(rng: np.random.Generator, x: Array) -> Call:
    min_p = np.full(len(x), 0.05)
    return lambda: ops.apply_min_p(x, min_p)


def _top_k_top_p(rng: np.random.Generator, x: Array) -> Call:
    top_k, top_p = np.full(len(x), 50, np.int32), np.full(len(x), 0.9)
    return lambda: ops.apply_top_k_top_p(x, top_k, top_p)


def _penalties(rng: np.random.Generator, x: Array) -> Call:
    row_ids = np.repeat(np.arange(len(x)), VOCAB // 50)
    token_ids = rng.integers(0, VOCAB, row_ids.size)
    is_output = rng.random(row_ids.size) < 0.5
    by_row = [np.full(len(x), value) for value in (1.1, 0.1, 0.1)]
    return lambda: ops.apply_penalties(x, row_ids, token_ids, is_output, *by_row)


def _token_mask(rng: np.random.Generator, x: Array) -> Call:
    mask = rng.random((len(x), VOCAB)) < 0.5
    return lambda: ops.apply_token_mask(x, mask)


def _named(rng: np.random.Generator, num_rows: int) -> tuple[Array, Array]:
    """Return the rows and tokens of ``N_NAMED`` different tokens of each row."""
    row_ids = np.repeat(np.arange(num_rows), N_NAMED)
    return row_ids, np.concatenate([rng.permutation(VOCAB)[:N_NAMED] for _ in range(num_rows)])


def _logit_bias(rng: np.random.Generator, x: Array) -> Call:
    row_ids, token_ids = _named(rng, len(x))
    bias = np.ones(len(row_ids), np.float32)
    return lambda: ops.apply_logit_bias(x, row_ids, token_ids, bias)


def _banned_ids(rng: np.random.Generator, x: Array) -> Call:
    named = _named(rng, len(x))
    return lambda: ops.apply_banned_ids(x, *named)


def _allowed_ids(rng: np.random.Generator, x: Array) -> Call:
    named = _named(rng, len(x))
    return lambda: ops.apply_allowed_ids(x, *named)


def _rejection(num_rows: int) -> Callable[[np.random.Generator], Call]:
    """Drafts of which the last one is wrong."""

    def make(rng: np.random.Generator) -> Call:
        token_ids = rng.integers(0, VOCAB, (num_rows, N_DRAFTS + 1))
        draft_ids = token_ids[:, :-1].copy()
        draft_ids[:, -1] += 1
        cu_num_drafts = np.arange(num_rows + 1) * N_DRAFTS
        return lambda: ops.rejection_sample(token_ids.ravel(), draft_ids.ravel(), cu_num_drafts)

    return make
