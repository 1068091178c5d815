"""Cases of the embedding family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows


def _embedding(
    num_tokens: int, vocab_size: int, hidden_size: int, *, ids: Any = np.int32, **scalars: Any
) -> MakeInputs:
    """Random ids with the first and the last row of the matrix among them."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        input_ids = rng.integers(0, vocab_size, num_tokens).astype(ids)
        input_ids[-1:], input_ids[:1] = vocab_size - 1, 0
        weight = normal(rng, dtype, vocab_size, hidden_size)
        return {"input_ids": input_ids, "weight": weight, **scalars}

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    input_ids = rng.integers(0, 11, 10)[::-2]
    return {"input_ids": input_ids, "weight": normal(rng, dtype, 11, 48)[:, 5:38]}


CASES = (
    *rows(
        {
            "one": _embedding(1, 1, 1),
            "below_vector": _embedding(3, 5, 7),
            "vector": _embedding(2, 5, 8, ids=np.int64),
            "odd": _embedding(9, 5, 33),
            "to_f32": _embedding(3, 5, 33, dtype="f32"),
            "to_bf16": _embedding(3, 5, 33, dtype="bf16"),
            "strided": _strided,
            "empty": _embedding(0, 5, 16),
        },
        "embedding",
        op_class="exact",
    ),
    *rows(
        {"hidden_576": _embedding(4, 7, 576)},
        "embedding",
        op_class="exact",
        dtypes=("f32", "bf16"),
    ),
)
