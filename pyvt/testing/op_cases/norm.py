"""Cases of the norm family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows


def _rms_norm(*shape: int, scale: float = 1.0) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        x = normal(rng, dtype, *shape, scale=scale)
        return {"x": x, "weight": normal(rng, dtype, shape[-1]), "eps": 1e-6}

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    x = normal(rng, dtype, 5, 48)[:, 8:40]
    return {"x": x, "weight": normal(rng, dtype, 32), "eps": 1e-5}


def _fused(*shape: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        x, residual = normal(rng, dtype, *shape), normal(rng, dtype, *shape)
        return {"x": x, "residual": residual, "weight": normal(rng, dtype, shape[-1]), "eps": 1e-6}

    return make


CASES = (
    *rows(
        {
            "one": _rms_norm(1, 1),
            "below_vector": _rms_norm(2, 7),
            "odd": _rms_norm(3, 33),
            "heads": _rms_norm(3, 2, 16),
            "hidden_576": _rms_norm(2, 576),
            "tiny_values": _rms_norm(2, 64, scale=1e-4),
            "huge_values": _rms_norm(2, 64, scale=1e3),
            "strided": _strided,
            "empty": _rms_norm(0, 16),
        },
        "rms_norm",
        op_class="norm",
    ),
    *rows(
        {
            "one": _fused(1, 1),
            "odd": _fused(3, 33),
            "hidden_576": _fused(1, 576),
        },
        "fused_add_rms_norm",
        op_class="norm",
        mutates=("residual",),
    ),
)
