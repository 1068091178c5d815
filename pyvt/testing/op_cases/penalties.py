"""Cases of the penalties family.

Every case has a row that its op has nothing to do for.
"""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import SELF, Inputs, MakeInputs, normal, rows

LOGIT_DTYPES = ("f32", "f64")
LOGIT_SCALE = 3.0
PAIRS = ([0, 2, 2, 3, 2], [4, 0, 32, 7, 1])


def _pairs(
    num_rows: int, vocab_size: int, pairs: tuple[list[int], list[int]], *, has_bias: bool = False
) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        row_ids, token_ids = (np.array(ids, np.int64) for ids in pairs)
        inputs = {
            "logits": normal(rng, dtype, num_rows, vocab_size, scale=LOGIT_SCALE),
            "row_ids": row_ids,
            "token_ids": token_ids,
        }
        # Quarters are exact in every float dtype.
        bias = rng.integers(-400, 401, len(row_ids)) / 4
        return inputs | ({"bias": bias.astype(dtype)} if has_bias else {})

    return make


def _mask(num_rows: int, vocab_size: int, share: float) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        mask = rng.random((num_rows, vocab_size)) < share
        mask[:1] = True
        return {
            "logits": normal(rng, dtype, num_rows, vocab_size, scale=LOGIT_SCALE),
            "mask": mask,
        }

    return make


def _occurrences(
    rng: np.random.Generator,
    in_prompt: np.ndarray[Any, Any],
    counts: np.ndarray[Any, Any],
) -> Inputs:
    """Name tokens of prompts and outputs in any order."""
    prompt_rows, prompt_ids = np.nonzero(in_prompt)
    output_rows, output_ids = (
        np.repeat(ids, counts.ravel()) for ids in np.indices(counts.shape).reshape(2, -1)
    )
    order = rng.permutation(len(prompt_ids) + len(output_ids))
    return {
        "row_ids": np.concatenate([prompt_rows, output_rows]).astype(np.int64)[order],
        "token_ids": np.concatenate([prompt_ids, output_ids]).astype(np.int64)[order],
        "is_output": (np.arange(len(order)) >= len(prompt_ids))[order],
    }


def _penalties(
    num_rows: int,
    vocab_size: int,
    repetition: list[float],
    presence: list[float],
    frequency: list[float],
) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        shape = (num_rows, vocab_size)
        counts = rng.poisson(0.4, shape)
        logits = normal(rng, dtype, *shape, scale=LOGIT_SCALE)
        logits[:, 2::11] = -np.inf
        logits[:, 3::11] = 0.0
        columns = {"repetition": repetition, "presence": presence, "frequency": frequency}
        return {
            "logits": logits,
            **_occurrences(rng, rng.random(shape) < 0.3, counts),
        } | {name: np.resize(x, num_rows).astype(dtype) for name, x in columns.items()}

    return make


OFF, REPETITION = [1.0], [1.0, 1.2, 0.8, 2.0]
PRESENCE, FREQUENCY = [0.0, 0.6, -0.5, 2.0], [0.0, 0.3, -1.0]

CASES = (
    *rows(
        {
            "one": _pairs(1, 1, ([0], [0]), has_bias=True),
            "odd": _pairs(4, 33, PAIRS, has_bias=True),
            "empty": _pairs(2, 5, ([], []), has_bias=True),
        },
        "apply_logit_bias",
        dtypes=LOGIT_DTYPES,
    ),
    *rows(
        {
            "one": _pairs(1, 1, ([0], [0])),
            "odd": _pairs(4, 33, PAIRS),
            "twice": _pairs(2, 7, ([1, 1], [3, 3])),
            "empty": _pairs(2, 5, ([], [])),
        },
        "apply_banned_ids",
        dtypes=LOGIT_DTYPES,
        op_class="exact",
    ),
    *rows(
        {
            "one": _pairs(1, 1, ([0], [0])),
            "odd": _pairs(4, 33, PAIRS),
            "twice": _pairs(2, 7, ([1, 1], [3, 3])),
            "empty": _pairs(2, 5, ([], [])),
        },
        "apply_allowed_ids",
        dtypes=LOGIT_DTYPES,
        op_class="exact",
    ),
    *rows(
        {
            "one": _mask(1, 1, 1.0),
            "odd": _mask(4, 33, 0.5),
            "nothing_left": _mask(2, 7, 0.0),
            "empty": _mask(0, 5, 0.5),
        },
        "apply_token_mask",
        dtypes=LOGIT_DTYPES,
        op_class="exact",
    ),
    *rows(
        {
            "one": _penalties(1, 1, [1.5], [0.0], [0.0]),
            "repetition": _penalties(4, 33, REPETITION, [0.0], [0.0]),
            "empty": _penalties(0, 5, REPETITION, [0.0], [0.0]),
        },
        "apply_penalties",
        dtypes=LOGIT_DTYPES,
    ),
    *rows(
        {
            "presence": _penalties(4, 33, OFF, PRESENCE, [0.0]),
            "frequency": _penalties(3, 33, OFF, [0.0], FREQUENCY),
            "all": _penalties(12, 33, REPETITION, PRESENCE, FREQUENCY),
        },
        "apply_penalties",
        dtypes=LOGIT_DTYPES,
        origin=SELF,
    ),
)
