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


def _gated(*shape: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        x, gate = normal(rng, dtype, *shape), normal(rng, dtype, *shape, scale=2.0)
        return {"x": x, "gate": gate, "weight": normal(rng, dtype, shape[-1]), "eps": 1e-6}

    return make


def _l2_norm(*shape: int, scale: float = 1.0) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, *shape, scale=scale), "eps": 1e-6}

    return make


def _part_of_rows(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Keys as a view of the channels of a convolution."""
    return {"x": normal(rng, dtype, 5, 48)[:, 8:40].reshape(5, 2, 16), "eps": 1e-6}


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
    *rows(
        {
            "one": _gated(1, 1),
            "below_vector": _gated(2, 7),
            "odd": _gated(3, 33),
            "heads_128": _gated(2, 2, 128),
            "empty": _gated(0, 16),
        },
        "rms_norm_gated",
        op_class="norm",
    ),
    *rows(
        {
            "one": _l2_norm(1, 1),
            "below_vector": _l2_norm(2, 7),
            "odd": _l2_norm(3, 33),
            "heads_128": _l2_norm(2, 2, 128),
            "tiny_values": _l2_norm(2, 64, scale=1e-5),
            "part_of_rows": _part_of_rows,
            "empty": _l2_norm(0, 16),
        },
        "l2_norm",
        op_class="norm",
    ),
)
