"""Cases of the activation family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 20.0, -20.0, 1000.0, -1000.0)


def _x(*shape: int, size: float = 1.0) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, *shape, scale=size)}

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    return {"x": normal(rng, dtype, 5, 48)[::-1, 3:43]}


def _special(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    return {"x": np.asarray(_SPECIAL, dtype)}


def _special_gate(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    gate = np.asarray(_SPECIAL, dtype)
    return {"x": np.concatenate([gate, np.full_like(gate, 2.0)])}


def _pair(*shape: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, *shape), "gate": normal(rng, dtype, *shape, scale=3.0)}

    return make


def _half_of_heads(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """The gate as a projection holds it, behind the query of each head."""
    return {"x": normal(rng, dtype, 3, 2, 16), "gate": normal(rng, dtype, 3, 2, 32)[..., 16:]}


def _special_pair(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    gate = np.asarray(_SPECIAL, dtype)
    return {"x": np.full_like(gate, 2.0), "gate": gate}


MAP_CASES = {
    "one": _x(1),
    "below_vector": _x(7),
    "vector": _x(2, 8),
    "odd": _x(3, 33, size=4.0),
    "scalar": _x(),
    "strided": _strided,
    "special": _special,
    "empty": _x(0, 16),
}
GATED_CASES = {
    "one": _x(1, 2),
    "below_vector": _x(2, 14),
    "vector": _x(2, 16),
    "odd": _x(3, 66, size=4.0),
    "flat": _x(10),
    "three_dims": _x(3, 2, 10),
    "strided": _strided,
    "special": _special_gate,
    "empty": _x(0, 16),
    "no_features": _x(2, 0),
}

CASES = (
    *rows(MAP_CASES, "relu"),
    *rows(MAP_CASES, "sigmoid"),
    *rows(MAP_CASES, "silu"),
    *rows({"hidden_576": _x(2, 576, size=3.0)}, "silu", dtypes=("f32", "bf16")),
    *rows(MAP_CASES, "gelu"),
    *rows(GATED_CASES, "silu_and_mul"),
    *rows({"intermediate_1536": _x(1, 3072)}, "silu_and_mul", dtypes=("f32", "bf16")),
    *rows({"mlp_tokens": _x(65, 3072)}, "silu_and_mul", has_golden=False),
    *rows(GATED_CASES, "gelu_and_mul"),
    *rows({"intermediate_1536": _x(1, 3072)}, "gelu_and_mul", dtypes=("f32", "bf16")),
    *rows(
        {
            "one": _pair(1),
            "below_vector": _pair(7),
            "odd": _pair(3, 33),
            "half_of_heads": _half_of_heads,
            "special": _special_pair,
            "empty": _pair(0, 16),
        },
        "sigmoid_gate",
    ),
)
