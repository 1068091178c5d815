"""Weights in packed blocks: decode them, look rows up in them, multiply by them.

A weight is decoded in tiles of rows, so that scratch stays small whatever the size of the weight.

Dims: T tokens, N output features, K input features, V vocabulary, H hidden size. ``...`` stands for
any leading dims.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.errors import ConfigError, did_you_mean
from pyvt.ops.block_formats import FORMATS, Panel, decode_panel
from pyvt.ops.elementwise import take_columns
from pyvt.ops.numerics import Array, accum_dtype, round_into
from pyvt.tensor.dtype import BLOCK_FORMATS, FLOATS, I32, I64, DType
from pyvt.tensor.quant_tensor import QuantTensor

DEQUANTIZE = declare("dequantize")
QUANT_EMBEDDING = declare("quant_embedding")
QUANTIZE_Q8_ROWS = declare("quantize_q8_rows", num_outputs=2)
QUANT_LINEAR = declare("quant_linear")

Q8_GROUP = 32
Q8_MAX = 127
# Smaller groups count as zero: every step of the quantisation then stays a normal f32 number.
Q8_TINY = 2.0**-100

_TILE_ELEMENTS = 1 << 18


def dequantize(
    weight: QuantTensor, *, dtype: DType | str = "f32", out: Array | None = None
) -> Array:
    """Expand a packed weight; each value is formed in f32 and rounded once into ``dtype``.

    Scales that are not finite give values that are not finite.

    Args:
        weight: ``[..., K]`` in any block format.
        dtype: f64|f32|bf16|f16, or its name.
        out: ``[..., K]`` of that dtype.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.

    Source: the ``gguf`` package, ``gguf.quants.dequantize``; equal to it bit for bit in f32.
    """
    check = Check("dequantize")
    check.tensor("weight", weight, "... K", BLOCK_FORMATS)
    out = check.output(out, weight.shape, check.named_dtype("dtype", dtype, FLOATS))
    if weight.columns is None:
        DEQUANTIZE(out, weight)
        return out
    stored = np.empty(out.shape, out.dtype)
    DEQUANTIZE(stored, weight)
    for index in np.ndindex(weight.columns.shape[:-1]):
        out[index][..., weight.columns[index]] = stored[index]
    return out


@DEQUANTIZE.reference
def _dequantize(out: Array, weight: QuantTensor) -> None:
    matrix_blocks, matrix_out = np.atleast_2d(weight.blocks), np.atleast_2d(out)
    for index in np.ndindex(*matrix_out.shape[:-2]):
        for rows, panel in _panels(weight, matrix_blocks[index]):
            matrix_out[index][rows] = _values(panel, weight.shape[-1])


def quant_embedding(
    input_ids: Array, weight: QuantTensor, *, dtype: DType | str = "f32", out: Array | None = None
) -> Array:
    """Look rows up in a packed table; only the rows asked for are decoded.

    Args:
        input_ids: ``[T]`` i32|i64, each in ``[0, V)``.
        weight: ``[V, H]`` in any block format.
        dtype: f64|f32|bf16|f16, or its name.
        out: ``[T, H]`` of that dtype.

    Returns:
        ``out``.

    Raises:
        ShapeError: also for an id out of range.
        DTypeError.

    Source: ggml ``ggml_get_rows``.
    """
    check = Check("quant_embedding")
    check.tensor("input_ids", input_ids, "T", (I32, I64))
    check.tensor("weight", weight, "V H", BLOCK_FORMATS)
    check.index("input_ids", input_ids, weight.shape[0])
    out = check.output(
        out, (len(input_ids), weight.shape[1]), check.named_dtype("dtype", dtype, FLOATS)
    )
    if weight.columns is not None:
        raise check.fail("weight", "columns in their own order", "another order")
    QUANT_EMBEDDING(out, input_ids, weight)
    return out


@QUANT_EMBEDDING.reference
def _quant_embedding(out: Array, input_ids: Array, weight: QuantTensor) -> None:
    for tokens in _runs(len(input_ids), weight.shape[-1]):
        _dequantize(out[tokens], weight.rows(input_ids[tokens]))


def quantize_q8_rows(x: Array, *, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
    """Quantise activations to int8 with one f32 scale for each group of 32 columns.

    In f32, for each group: ``scale = max|x| / 127``, ``code = rint(x · (127 / max|x|))``, halves
    to even. A group whose largest magnitude is below ``2^-100`` gets scale 0 and codes 0; a group
    with a NaN or an infinity gets scale NaN and codes 0, so that what is computed from it is NaN.

    Args:
        x: ``[..., K]`` f64|f32|bf16|f16, K a multiple of 32; f64 is first rounded to f32.
        out: codes and scales to write into.

    Returns:
        Codes int8 ``[..., K]`` in [−127, 127] and scales f32 ``[..., K / 32]``.

    Raises:
        ShapeError, DTypeError.

    Source: ggml ``quantize_row_q8_0``, with the scale kept in f32.
    """
    check = Check("quantize_q8_rows")
    check.tensor("x", x, "... K", FLOATS)
    columns = check.dims["K"]
    if columns % Q8_GROUP:
        raise check.fail("x", f"K a multiple of {Q8_GROUP}", columns)
    codes, scales = (None, None) if out is None else out
    codes = check.output(codes, x.shape, np.dtype(np.int8), "codes")
    scales_shape = (*x.shape[:-1], columns // Q8_GROUP)
    scales = check.output(scales, scales_shape, np.dtype(np.float32), "scales")
    QUANTIZE_Q8_ROWS(codes, scales, x)
    return codes, scales


@QUANTIZE_Q8_ROWS.reference
def _quantize_q8_rows(codes: Array, scales: Array, x: Array) -> None:
    groups = x.astype(np.float32).reshape(*scales.shape, Q8_GROUP)
    largest = np.abs(groups).max(axis=-1, initial=0)
    is_finite = np.isfinite(largest)
    is_used = is_finite & (largest >= np.float32(Q8_TINY))
    inverse = np.where(is_used, np.float32(Q8_MAX) / largest, np.float32(0))
    steps = np.where(is_used[..., None], groups * inverse[..., None], np.float32(0))
    codes[...] = np.rint(steps).reshape(codes.shape)
    scales[...] = np.where(is_used, largest / np.float32(Q8_MAX), np.float32(0))
    scales[~is_finite] = np.nan


def quant_linear(
    x: Array,
    weight: QuantTensor,
    bias: Array | None = None,
    *,
    act: str = "none",
    out: Array | None = None,
) -> Array:
    """``x @ weight.T + bias`` with a weight that stays packed.

    ``act="none"`` decodes the weight and multiplies in f32, in f64 where an input is f64.
    ``act="q8"`` quantises the rows of ``x`` by ``quantize_q8_rows``. Then, with the weight as
    ``scale · code + min`` in groups of 32 or 16 columns and ``s`` the activation's scale, each
    group in order of columns adds ``dot · (scale · s)`` and, where the format has mins,
    ``min · (s · sum)``; ``dot`` and ``sum``, over the group's codes, are exact integers and the
    running sum is f32 (f64 where an input is f64).

    Args:
        x: ``[..., K]`` f64|f32|bf16|f16.
        weight: ``[N, K]`` in any block format.
        bias: ``[N]`` f64|f32|bf16|f16, added before the rounding.
        act: ``none`` or ``q8``.
        out: ``[..., N]``, the dtype of ``x``; shares no memory with an input.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
        ConfigError: for an unknown ``act``.

    Source: ggml ``ggml_mul_mat`` and ``ggml_vec_dot_*_q8_*``.
    """
    check = Check("quant_linear")
    check.tensor("x", x, "... K", FLOATS)
    check.tensor("weight", weight, "N K", BLOCK_FORMATS)
    check.optional("bias", bias, "N", FLOATS)
    if act not in tuple(_PRODUCTS):
        valid = did_you_mean(act, _PRODUCTS)
        raise ConfigError(f"[quant_linear] act: {act!r} is unknown; {valid}", field="act")
    if act == "q8" and not weight.dtype.has_codes:
        raise ConfigError(
            f"[quant_linear] act: expected none for a weight in {weight.dtype}, which has no "
            f"integer codes, got {act!r}",
            field="act",
        )
    out = check.output(out, (*x.shape[:-1], weight.shape[0]), x.dtype)
    check.disjoint("out", out, x=x, weight=weight.blocks, bias=bias)
    if weight.columns is not None:
        x = take_columns(x, weight.columns)
    QUANT_LINEAR(out, x, weight, bias, act)
    return out


@QUANT_LINEAR.reference
def _quant_linear(out: Array, x: Array, weight: QuantTensor, bias: Array | None, act: str) -> None:
    accum = accum_dtype(x) if bias is None else accum_dtype(x, bias)
    group_size = FORMATS[weight.dtype.name].group_size
    product = _PRODUCTS[act](x.reshape(-1, x.shape[-1]), group_size, accum)
    for rows, panel in _panels(weight, weight.blocks):
        sums = product(panel)
        if bias is not None:
            sums += bias[rows].astype(accum)
        round_into(out[..., rows], sums.reshape(*out.shape[:-1], sums.shape[-1]))


Product = Callable[[Panel], Array]


def _decoded_product(x: Array, _group_size: int, accum: "np.dtype[Any]") -> Product:
    """Return the function from a panel of R rows to its products ``[T, R]``, in decoded values."""
    wide = x.astype(accum)
    return lambda panel: wide @ _values(panel, x.shape[-1]).astype(accum, copy=False).T


def _q8_product(x: Array, group_size: int, accum: "np.dtype[Any]") -> Product:
    """Return the function from a panel of R rows to its products ``[T, R]``, by int8 codes."""
    codes = np.empty(x.shape, np.int8)
    scales = np.empty((len(x), x.shape[-1] // Q8_GROUP), np.float32)
    _quantize_q8_rows(codes, scales, x)
    num_groups = x.shape[-1] // group_size
    # An integer dot of one group is below 2^24, so f32 holds it exactly.
    x_codes = codes.astype(np.float32).reshape(len(x), num_groups, group_size)
    x_scales = np.repeat(scales, Q8_GROUP // group_size, axis=-1).astype(accum)
    x_sums = x_scales * x_codes.sum(axis=-1)

    def product(panel: Panel) -> Array:
        w_codes = panel.codes.astype(np.float32).reshape(-1, num_groups, group_size)
        w_scales = panel.scales.reshape(-1, num_groups)
        w_mins = None if panel.mins is None else panel.mins.reshape(-1, num_groups)
        sums = np.zeros((len(x), len(w_codes)), accum)
        for g in range(num_groups):
            dot = x_codes[:, g] @ w_codes[:, g].T
            sums += dot * (x_scales[:, g, None] * w_scales[:, g])
            if w_mins is not None:
                sums += x_sums[:, g, None] * w_mins[:, g]
        return sums

    return product


_PRODUCTS = {"none": _decoded_product, "q8": _q8_product}


def _runs(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Yield slices of rows that cover ``num_rows``, about ``_TILE_ELEMENTS`` elements each."""
    step = max(1, _TILE_ELEMENTS // max(1, num_columns))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def _panels(weight: QuantTensor, blocks: Array) -> Iterator[tuple[slice, Panel]]:
    """Yield each run of rows of a matrix of blocks ``[N, bytes]``, and its panel."""
    for rows in _runs(len(blocks), weight.shape[-1]):
        yield rows, decode_panel(weight.dtype, blocks[rows])


def _values(panel: Panel, num_columns: int) -> Array:
    """Return the decoded values of a panel as f32 rows ``[R, K]``."""
    values = panel.codes.astype(np.float32)
    values *= panel.scales[..., None]
    if panel.mins is not None:
        values += panel.mins[..., None]
    return values.reshape(-1, num_columns)
