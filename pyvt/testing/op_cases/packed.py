"""Cases of packed weights; the layout is made by ``pack_tiles``, so no backend has a say in it."""

from typing import Any

import numpy as np

from pyvt.ops.packed_layouts import LAYOUTS, pack_tiles
from pyvt.tensor.dtype import DTYPES, dtype_of
from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows
from pyvt.testing.random_blocks import random_weight

# One row, the last one of a tile that is full, rows of a tile that is not, one twice.
_IDS = (0, 15, 16, 19, 3, 19)
_PLAIN = ("f32", "bf16", "f16")
_BLOCKS = tuple(name for name in LAYOUTS if DTYPES[name].is_block)
_F32 = ("f32",)


def _packed(
    name: str, x_shape: tuple[int, ...], num_rows: int, *, act: str = "none", has_bias: bool = False
) -> MakeInputs:
    """Rows of ``x_shape`` times a weight in the dtype of that name, outputs near 1."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        columns, of_weight = x_shape[-1], DTYPES[name]
        size = max(1, columns) ** -0.5
        weight = (
            random_weight(rng, of_weight, num_rows, columns, magnitude=size)
            if of_weight.numpy is None
            else normal(rng, of_weight.numpy, num_rows, columns, scale=size)
        )
        return {
            "x": normal(rng, dtype, *x_shape),
            "weight": pack_tiles(weight),
            "bias": normal(rng, dtype, num_rows) if has_bias else None,
            "act": act,
        }

    return make


def _lookup(
    name: str, columns: int, ids: Any = _IDS, *, num_rows: int = 20, id_dtype: Any = np.int64
) -> MakeInputs:
    """Rows by id of a weight in the dtype of that name."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        of_weight = DTYPES[name]
        weight = (
            random_weight(rng, of_weight, num_rows, columns)
            if of_weight.numpy is None
            else normal(rng, of_weight.numpy, num_rows, columns)
        )
        return {
            "input_ids": np.array(ids, id_dtype),
            "weight": pack_tiles(weight),
            "dtype": dtype_of(np.empty(0, dtype)).name,
        }

    return make


def _own_dtype(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """The output is in the dtype of the table."""
    return {"input_ids": np.array([4, 1]), "weight": pack_tiles(normal(rng, dtype, 5, 7))}


CASES = (
    *rows(
        {f"{name}_rows": _lookup(name, 256) for name in _BLOCKS}
        | {f"{name}_odd": _lookup(name, 33, id_dtype=np.int32) for name in _PLAIN},
        "packed_embedding",
        op_class="exact",
        dtypes=("f32", "bf16"),
    ),
    *rows(
        {"own_dtype": _own_dtype, "one": _lookup("f32", 1, (0,), num_rows=1)},
        "packed_embedding",
        op_class="exact",
        dtypes=_PLAIN,
    ),
    *rows(
        {"other_dtypes": _lookup("q4_k", 256)}, "packed_embedding", dtypes=("f64", "bf16", "f16")
    ),
    *rows(
        {
            "no_ids": _lookup("q4_1", 64, ()),
            "no_columns": _lookup("bf16", 0),
            "hidden_576": _lookup("q4_1", 576, range(0, 1537, 37), num_rows=1537),
            "hidden_1024": _lookup("q6_k", 1024, range(40, 0, -1), num_rows=41),
        },
        "packed_embedding",
        op_class="exact",
        dtypes=_F32,
        has_golden=False,
    ),
    *rows(
        {
            f"{name}_{label}": make
            for name in _PLAIN
            for label, make in {
                "one": _packed(name, (1, 1), 1),
                "odd": _packed(name, (3, 33), 17),
                "tiles": _packed(name, (2, 40), 32, has_bias=True),
            }.items()
        }
        | {
            "leading_dims": _packed("bf16", (2, 3, 16), 5),
            "flat": _packed("f32", (35,), 20, has_bias=True),
        },
        "packed_linear",
        op_class="linear",
    ),
    *rows(
        {
            f"{name}_{act}": _packed(name, (2, 256), 18, act=act, has_bias=True)
            for name in _BLOCKS
            for act in ("none", "q8")
            if act == "none" or DTYPES[name].has_codes
        },
        "packed_linear",
        op_class="linear",
        dtypes=_F32,
    ),
    *rows(
        {
            "empty": _packed("bf16", (0, 16), 4, has_bias=True),
            "no_outputs": _packed("f32", (2, 16), 0),
            "no_inputs": _packed("f16", (2, 0), 3, has_bias=True),
            "mlp_decode": _packed("bf16", (1, 576), 3072),
            "mlp_tokens": _packed("bf16", (65, 576), 1537, has_bias=True),
        },
        "packed_linear",
        op_class="linear",
        has_golden=False,
    ),
    *rows(
        {
            f"{name}_tokens_{act}": _packed(name, (33, 768), 100, act=act)
            for name in _BLOCKS
            for act in ("none", "q8")
            if act == "none" or DTYPES[name].has_codes
        },
        "packed_linear",
        op_class="linear",
        dtypes=("f32", "bf16"),
        has_golden=False,
    ),
)
