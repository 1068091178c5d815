"""Cases of the packed weight formats."""

from typing import Any

import numpy as np

from pyvt.ops.block_formats import FORMATS
from pyvt.tensor.dtype import BLOCK_FORMATS, DTYPES, SCALED_BLOCKS, DType, dtype_of
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases.case import SELF, Inputs, MakeInputs, normal, rows
from pyvt.testing.random_blocks import random_weight

# Zeros, the smallest subnormal, the largest subnormal, the largest number, infinity, NaN.
_EDGE_F16 = (0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0x7E00)
_EDGE_E8M0 = (0, 1, 2, 127, 253, 254, 255)
_EDGE_UE4M3 = (0x00, 0x01, 0x07, 0x08, 0x7E, 0x7F, 0xFF)


def edge_weight(rng: np.random.Generator, dtype: DType) -> QuantTensor:
    """Return rows of 256: two ordinary ones, all bits clear, all set, one for each edge scale."""
    weight = random_weight(rng, dtype, 4 + len(_EDGE_F16), 256)
    weight.blocks[2] = 0x00
    weight.blocks[3] = 0xFF
    fields = weight.blocks.reshape(-1, dtype.block_bytes).view(FORMATS[dtype.name].layout)
    fields = fields.reshape(len(weight.blocks), -1)
    edges = fields[4:]
    if dtype.name == "mxfp4":
        edges["e"] = np.array(_EDGE_E8M0, np.uint8)[:, None]
    elif dtype.name == "nvfp4":
        edges["sc"] = np.array(_EDGE_UE4M3, np.uint8)[:, None, None]
    elif dtype in SCALED_BLOCKS:
        _set_scaled_edges(fields, edges)
    else:
        fields["d"][2:4] = 1
        edges["d"] = np.array(_EDGE_F16, np.uint16).view(np.float16)[:, None]
    return weight


def _set_scaled_edges(fields: Any, edges: Any) -> None:
    """Set scales of 1 where all bits are set or clear, and the edges; 16 - zero is at most 16."""
    fields["scale"][2:4] = 1
    edges["scale"] = np.array(_EDGE_F16, np.uint16).view(np.float16)[:, None]
    if "raised" in fields.dtype.names:
        fields["raised"][3] = 16
    if "sc" in fields.dtype.names:
        edges["sc"][2] = np.resize(np.arange(256), edges["sc"][2].shape)


def _name_of(plain: "np.dtype[Any]") -> str:
    return dtype_of(np.empty(0, plain)).name


def _dequantize(dtype: DType, *shape: int) -> MakeInputs:
    def make(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
        return {"weight": random_weight(rng, dtype, *shape), "dtype": _name_of(plain)}

    return make


def _edges(dtype: DType) -> MakeInputs:
    def make(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
        return {"weight": edge_weight(rng, dtype)}

    return make


def _strided(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
    whole = random_weight(rng, DTYPES["q5_0"], 6, 128)
    middle = slice(DTYPES["q5_0"].row_bytes(32), DTYPES["q5_0"].row_bytes(96))
    return {"weight": QuantTensor(whole.dtype, (3, 64), whole.blocks[::2, middle])}


def _embedding(dtype: DType, ids: list[int], id_dtype: Any = np.int64) -> MakeInputs:
    def make(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
        return {
            "input_ids": np.array(ids, id_dtype),
            "weight": random_weight(rng, dtype, 7, 256),
            "dtype": _name_of(plain),
        }

    return make


def _linear(
    dtype: DType, act: str, x_shape: tuple[int, ...], num_rows: int, has_bias: bool = False
) -> MakeInputs:
    def make(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
        return {
            "x": normal(rng, plain, *x_shape),
            "weight": random_weight(rng, dtype, num_rows, x_shape[-1]),
            "bias": normal(rng, plain, num_rows) if has_bias else None,
            "act": act,
        }

    return make


def _q8_rows(*shape: int, scale: float = 1.0) -> MakeInputs:
    def make(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
        return {"x": normal(rng, plain, *shape, scale=scale)}

    return make


def _halves(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
    x = np.arange(-64, 64) + 0.5
    x[::32] = 127
    return {"x": x.reshape(2, 64).astype(plain)}


def _edge_groups(rng: np.random.Generator, plain: "np.dtype[Any]") -> Inputs:
    x = rng.standard_normal((6, 32))
    x[0] = 0
    x[1] *= 2.0**-110
    x[2] *= 2.0**-95
    x[3, 5] = np.nan
    x[4, 7] = -np.inf
    return {"x": x.reshape(2, 96).astype(plain)}


_Q4_0, _Q4_1, _Q4_K, _Q6_K = (DTYPES[name] for name in ("q4_0", "q4_1", "q4_k", "q6_k"))
_F32 = ("f32",)
_HALVES = ("bf16", "f16")

CASES = (
    *rows(
        {dtype.name: _edges(dtype) for dtype in BLOCK_FORMATS}
        | {
            "one_row": _dequantize(_Q6_K, 256),
            "experts": _dequantize(_Q4_1, 2, 3, 64),
            "strided": _strided,
        },
        "dequantize",
        op_class="exact",
        dtypes=_F32,
    ),
    *rows({"other_dtypes": _dequantize(_Q4_K, 3, 256)}, "dequantize", dtypes=("f64", *_HALVES)),
    *rows({"no_rows": _dequantize(_Q4_K, 0, 256)}, "dequantize", dtypes=_F32, has_golden=False),
    *rows(
        {
            "q4_1": _embedding(_Q4_1, [3, 0, 6, 3]),
            "q6_k": _embedding(_Q6_K, [6, 6, 1], np.int32),
            "iq2_xs": _embedding(DTYPES["iq2_xs"], [2]),
            "nvfp4": _embedding(DTYPES["nvfp4"], [5, 4]),
        },
        "quant_embedding",
        op_class="exact",
        dtypes=_F32,
    ),
    *rows(
        {f"{dtype.name}_rows": _embedding(dtype, [2, 6, 0]) for dtype in BLOCK_FORMATS},
        "quant_embedding",
        op_class="exact",
        dtypes=_F32,
        has_golden=False,
    ),
    *rows({"other_dtypes": _embedding(_Q4_K, [1, 4])}, "quant_embedding", dtypes=("f64", *_HALVES)),
    *rows({"no_ids": _embedding(_Q4_K, [])}, "quant_embedding", dtypes=_F32, has_golden=False),
    *rows(
        {
            "one_group": _q8_rows(1, 32),
            "rows": _q8_rows(3, 96),
            "halves": _halves,
        },
        "quantize_q8_rows",
        op_class="exact",
        takes_out=False,
    ),
    # In f32 only: a half dtype hits exact halves, where torch's 1 / (max / 127) rounds otherwise.
    *rows(
        {"leading_dims": _q8_rows(2, 2, 64, scale=40.0)},
        "quantize_q8_rows",
        op_class="exact",
        dtypes=_F32,
        takes_out=False,
    ),
    *rows(
        {"edge_groups": _edge_groups},
        "quantize_q8_rows",
        op_class="exact",
        dtypes=("f32", "bf16", "f64"),
        origin=SELF,
        takes_out=False,
    ),
    *rows(
        {
            f"{dtype.name}_{act}": _linear(dtype, act, (2, 256), 4)
            for dtype in BLOCK_FORMATS
            for act in ("none", "q8")
            if act == "none" or dtype.has_codes
        }
        | {
            "one_none": _linear(_Q4_0, "none", (1, 32), 1),
            "one_q8": _linear(_Q4_0, "q8", (1, 32), 1),
            "hidden_576_none": _linear(_Q4_1, "none", (1, 576), 8, has_bias=True),
            "hidden_576_q8": _linear(_Q4_1, "q8", (1, 576), 8, has_bias=True),
            "leading_dims_none": _linear(_Q4_K, "none", (2, 3, 256), 3),
            "leading_dims_q8": _linear(_Q4_K, "q8", (2, 3, 256), 3),
        },
        "quant_linear",
        op_class="linear",
        dtypes=_F32,
    ),
    *rows(
        {
            "no_tokens_none": _linear(_Q4_K, "none", (0, 256), 3),
            "no_tokens_q8": _linear(_Q4_K, "q8", (0, 256), 3),
            "no_rows_q8": _linear(_Q4_K, "q8", (2, 256), 0),
        },
        "quant_linear",
        op_class="linear",
        dtypes=_F32,
        has_golden=False,
    ),
    *rows(
        {
            "other_dtypes_none": _linear(_Q4_K, "none", (2, 256), 4, has_bias=True),
            "wide_sum_none": _linear(_Q6_K, "none", (2, 1536), 3),
        },
        "quant_linear",
        op_class="linear",
        dtypes=("f64", *_HALVES),
    ),
    *rows(
        {"other_dtypes_q8": _linear(_Q4_K, "q8", (2, 256), 4, has_bias=True)},
        "quant_linear",
        op_class="linear",
        dtypes=_HALVES,
    ),
)
