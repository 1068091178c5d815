"""Cases of the linear family."""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows


def _linear(
    shape: tuple[int, ...],
    num_outputs: int,
    *,
    has_bias: bool = False,
    weight_dtype: Any = None,
) -> MakeInputs:
    """Rows of ``shape``; weights small enough that outputs are near 1, as in a model."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        of_weight = dtype if weight_dtype is None else np.dtype(weight_dtype)
        size = max(1, shape[-1]) ** -0.5
        return {
            "x": normal(rng, dtype, *shape),
            "weight": normal(rng, of_weight, num_outputs, shape[-1], scale=size),
            "bias": normal(rng, of_weight, num_outputs) if has_bias else None,
        }

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    x = normal(rng, dtype, 5, 48)[:, 8:40]
    return {"x": x, "weight": normal(rng, dtype, 9, 64, scale=0.2)[:, ::2], "bias": None}


def _transposed(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    x = normal(rng, dtype, 33, 5).T
    return {"x": x, "weight": normal(rng, dtype, 33, 7, scale=0.2).T, "bias": None}


CASES = (
    *rows(
        {
            "one": _linear((1, 1), 1),
            "below_vector": _linear((2, 7), 7),
            "vector": _linear((2, 8), 8),
            "odd": _linear((3, 33), 17),
            "bias": _linear((3, 33), 9, has_bias=True),
            "flat": _linear((33,), 9, has_bias=True),
            "three_dims": _linear((2, 3, 16), 5),
            "strided": _strided,
            "transposed": _transposed,
            "empty": _linear((0, 16), 4, has_bias=True),
            "no_outputs": _linear((2, 16), 0),
            "no_inputs": _linear((2, 0), 3, has_bias=True),
        },
        "linear",
        op_class="linear",
    ),
    *rows(
        {
            "hidden_576": _linear((2, 576), 12, has_bias=True),
            "intermediate_1536": _linear((1, 1536), 5),
        },
        "linear",
        op_class="linear",
        dtypes=("f32", "bf16"),
    ),
    *rows(
        {
            "weight_bf16": _linear((3, 33), 9, has_bias=True, weight_dtype=ml_dtypes.bfloat16),
            "weight_f16": _linear((3, 33), 9, weight_dtype=np.float16),
        },
        "linear",
        op_class="linear",
        dtypes=("f32", "f64"),
    ),
    *rows(
        {"weight_f32": _linear((3, 33), 9, has_bias=True, weight_dtype=np.float32)},
        "linear",
        op_class="linear",
        dtypes=("bf16", "f16"),
    ),
    *rows(
        {
            "mlp_decode": _linear((1, 576), 3072),
            "mlp_tokens": _linear((65, 576), 3072),
            "many_tiles": _linear((3, 1536), 1537, has_bias=True, weight_dtype=ml_dtypes.bfloat16),
        },
        "linear",
        op_class="linear",
        has_golden=False,
    ),
)
