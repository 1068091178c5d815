"""Cases of the logprobs family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

LOGIT_DTYPES = ("f32", "f64")


def _logits(num_rows: int, vocab_size: int, *, scale: float = 3.0) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"logits": normal(rng, dtype, num_rows, vocab_size, scale=scale)}

    return make


def _ties(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    return {"logits": rng.choice([-1.0, 0.0, 2.0], (5, 40)).astype(dtype)}


def _masked(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    logits = normal(rng, dtype, 3, 17)
    logits[0, ::3] = -np.inf
    logits[1, 1:] = -np.inf
    return {"logits": logits}


def _top(base: MakeInputs, num_top: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        inputs = base(rng, dtype)
        num_rows, vocab_size = inputs["logits"].shape
        token_ids = rng.integers(0, vocab_size, num_rows)
        return inputs | {"token_ids": token_ids, "num_top": num_top}

    return make


CASES = (
    *rows(
        {
            "one": _logits(1, 1),
            "odd": _logits(3, 33),
            "large": _logits(2, 33, scale=300.0),
            "ties": _ties,
            "masked": _masked,
            "empty": _logits(0, 5),
        },
        "log_softmax",
        dtypes=LOGIT_DTYPES,
        op_class="softmax",
    ),
    *rows(
        {
            "one": _top(_logits(1, 1), 1),
            "none": _top(_logits(3, 33), 0),
            "five": _top(_logits(3, 33), 5),
            "all": _top(_logits(2, 9), 9),
            "ties": _top(_ties, 20),
            "masked": _top(_masked, 6),
            "empty": _top(_logits(0, 5), 2),
        },
        "top_logprobs",
        dtypes=LOGIT_DTYPES,
        op_class="softmax",
        takes_out=False,
    ),
)
