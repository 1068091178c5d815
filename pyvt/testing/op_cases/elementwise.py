"""Cases of the elementwise family."""

from typing import Any

import ml_dtypes
import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows

_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 2.0**-14)
_BEYOND_FP8 = (448.0, -464.0, 465.0, -1000.0, 60000.0)


def _two(*shape: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, *shape), "y": normal(rng, dtype, *shape)}

    return make


def _two_strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    return {"x": normal(rng, dtype, 5, 48)[:, 8:40], "y": normal(rng, dtype, 32, 5).T}


def _two_special(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    values = np.asarray(_SPECIAL, dtype)
    x, y = np.meshgrid(values, values)
    return {"x": x, "y": y}


def _two_dtypes(of_y: Any) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, 3, 33), "y": normal(rng, np.dtype(of_y), 3, 33)}

    return make


def _one(*shape: int, size: float = 1.0, **scalars: Any) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, *shape, scale=size), **scalars}

    return make


def _one_strided(**scalars: Any) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, dtype, 5, 48)[::-2, 1:40:3], **scalars}

    return make


def _one_special(*more: float, **scalars: Any) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {"x": np.asarray((*_SPECIAL, *more), dtype), **scalars}

    return make


TWO_CASES = {
    "one": _two(1),
    "below_vector": _two(7),
    "vector": _two(2, 8),
    "odd": _two(3, 33),
    "scalar": _two(),
    "strided": _two_strided,
    "special": _two_special,
    "empty": _two(0, 16),
}


def _columns(
    x_shape: tuple[int, ...], num_columns: int, ids: Any = np.int32, *, is_strided: bool = False
) -> MakeInputs:
    """Random columns, the first and the last one of ``x`` among them."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        columns = rng.integers(0, x_shape[-1], num_columns).astype(ids)
        columns[-1:], columns[:1] = x_shape[-1] - 1, 0
        x = normal(rng, dtype, *x_shape)
        return {"x": x[::-2] if is_strided else x, "columns": columns}

    return make


CASES = (
    *rows(
        {
            "one": _columns((1, 1), 1),
            "odd": _columns((3, 33), 17),
            "more": _columns((2, 7), 40, np.int64),
            "leading_dims": _columns((2, 3, 16), 16),
            "strided": _columns((5, 24), 24, is_strided=True),
            "no_rows": _columns((0, 8), 8),
            "hidden_576": _columns((2, 576), 576),
        },
        "take_columns",
        op_class="exact",
    ),
    *rows(TWO_CASES, "add"),
    *rows({"hidden_576": _two(2, 576)}, "add", dtypes=("f32", "bf16")),
    *rows({"y_f32": _two_dtypes(np.float32)}, "add", dtypes=("bf16", "f16")),
    *rows({"y_bf16": _two_dtypes(ml_dtypes.bfloat16)}, "add", dtypes=("f32", "f64")),
    *rows(TWO_CASES, "mul"),
    *rows({"intermediate_1536": _two(1, 1536)}, "mul", dtypes=("f32", "bf16")),
    *rows({"y_f32": _two_dtypes(np.float32)}, "mul", dtypes=("bf16", "f16")),
    *rows(
        {
            "one": _one(1, factor=0.1),
            "below_vector": _one(7, factor=-3.0),
            "vector": _one(2, 8, factor=0.0),
            "odd": _one(3, 33, factor=1 / 3),
            "strided": _one_strided(factor=0.7),
            "special": _one_special(factor=-2.0),
            "empty": _one(0, factor=2.0),
        },
        "scale",
    ),
    *rows({"hidden_576": _one(2, 576, factor=24.0)}, "scale", dtypes=("f32", "bf16")),
    *rows(
        {
            "one": _one(1, dtype="f32"),
            "below_vector": _one(7, dtype="bf16"),
            "vector": _one(2, 8, dtype="f16"),
            "odd_f64": _one(3, 33, dtype="f64"),
            "odd_f32": _one(3, 33, dtype="f32"),
            "odd_bf16": _one(3, 33, dtype="bf16"),
            "odd_f16": _one(3, 33, dtype="f16"),
            "odd_fp8_e4m3": _one(3, 33, size=50.0, dtype="fp8_e4m3"),
            "odd_fp8_e5m2": _one(3, 33, size=50.0, dtype="fp8_e5m2"),
            "tiny_f16": _one(33, size=1e-6, dtype="f16"),
            "tiny_fp8_e4m3": _one(33, size=1e-2, dtype="fp8_e4m3"),
            "strided": _one_strided(dtype="bf16"),
            "special_bf16": _one_special(dtype="bf16"),
            "special_f16": _one_special(dtype="f16"),
            "special_fp8_e4m3": _one_special(*_BEYOND_FP8, dtype="fp8_e4m3"),
            "empty": _one(0, 16, dtype="bf16"),
        },
        "cast",
        op_class="exact",
    ),
    *rows(
        {
            "one": _one(1, cap=30.0),
            "below_vector": _one(7, size=50.0, cap=30.0),
            "vector": _one(2, 8, size=50.0, cap=50.0),
            "odd": _one(3, 33, size=50.0, cap=30.0),
            "strided": _one_strided(cap=0.5),
            "special": _one_special(cap=50.0),
            "empty": _one(0, cap=30.0),
        },
        "soft_cap",
    ),
    *rows({"logits": _one(2, 576, size=20.0, cap=30.0)}, "soft_cap", dtypes=("f32", "bf16")),
)
