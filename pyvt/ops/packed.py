"""Weights laid out for the kernels of a backend: packed once, for products and for rows by id.

Dims: E matrices of a stack; K input features, N output features; T tokens, V vocabulary, H hidden
size. ``...`` stands for any leading dims.
"""

from dataclasses import replace

import numpy as np

from pyvt.dispatch import Check, declare
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import ConfigError, DTypeError, ShapeError, did_you_mean
from pyvt.ops.elementwise import take_columns
from pyvt.ops.embedding import EMBEDDING
from pyvt.ops.linear import LINEAR
from pyvt.ops.numerics import Array
from pyvt.ops.packed_layouts import LAYOUTS, unpack_tiles
from pyvt.ops.quant_gguf import QUANT_EMBEDDING, QUANT_LINEAR
from pyvt.tensor.dtype import DTYPES, F32, FLOATS, I32, I64, DType
from pyvt.tensor.packed_tensor import TILE_ROWS, PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, has_same_columns, joined, joined_columns, stored_dtype

PACKED_LINEAR = declare("packed_linear")
PACKED_EMBEDDING = declare("packed_embedding")

_PACKED_DTYPES = tuple(DTYPES[name] for name in LAYOUTS)
_ACT_MODES = ("none", "q8")
# Elements of a weight that the reference unpacks at a time.
_RUN_ELEMENTS = 1 << 18


def prepack_weight(*parts: Stored) -> Stored | PackedTensor:
    """Lay a weight out for the kernels of the selected host backend, once, after loading.

    A copy, on the device of a backend that has one. Where the backend reads the dtype as it is
    stored, as the reference does, the weight itself is returned, and several parts as one.

    Args:
        parts: ``[Nᵢ, K]`` of one plain or block dtype; the weight has their rows in this order. Or
            stacks ``[Eᵢ, N, K]``, of the experts of a layer: it has their matrices in this order.

    Returns:
        A weight ``[ΣNᵢ, K]``: packed for ``packed_linear``, else for ``linear``, ``quant_linear``.
        Or a stack ``[ΣEᵢ, N, K]`` for ``fused_experts``.

    Raises:
        ShapeError, DTypeError: the parts do not fit together.
    """
    dtypes = [stored_dtype(part) for part in parts]
    if any(dtype is not dtypes[0] for dtype in dtypes):
        raise DTypeError(f"[prepack_weight] parts: expected one dtype, got {dtypes}")
    shapes = [part.shape for part in parts]
    if len(shapes[0]) not in (2, 3) or len({shape[1:] for shape in shapes}) > 1:
        raise ShapeError(
            f"[prepack_weight] parts: expected [N, K] of one K, or [E, N, K] of one N and K, "
            f"got {shapes}"
        )
    if not has_same_columns(parts):
        raise ShapeError("[prepack_weight] parts: expected columns in one order, got others")
    columns = joined_columns(parts)
    prepack = selected_backend().prepack
    packed = None if prepack is None else prepack(parts)
    if packed is None:
        return joined(parts)
    return replace(packed, columns=columns) if isinstance(packed, PackedTensor) else packed


def packed_linear(
    x: Array,
    weight: PackedTensor,
    bias: Array | None = None,
    *,
    act: str = "none",
    out: Array | None = None,
) -> Array:
    """``x @ weight.T + bias`` with a packed weight: ``linear`` or ``quant_linear`` by its dtype.

    Args:
        x: ``[..., K]`` f64|f32|bf16|f16.
        weight: ``[N, K]``, from ``prepack_weight``.
        bias: ``[N]`` f64|f32|bf16|f16, added before the rounding.
        act: as in ``quant_linear``; ``none`` for a weight of a plain dtype.
        out: ``[..., N]``, the dtype of ``x``; shares no memory with an input.

    Returns:
        ``out``.

    Raises:
        ShapeError, DTypeError.
        ConfigError: for an ``act`` that is unknown or does not fit the weight.
    """
    _check_packed("packed_linear", weight)
    check = Check("packed_linear")
    check.tensor("x", x, "... K", FLOATS)
    check.tensor("weight", weight, "N K", _PACKED_DTYPES)
    check.optional("bias", bias, "N", FLOATS)
    if act not in _ACT_MODES:
        valid = did_you_mean(act, _ACT_MODES)
        raise ConfigError(f"[packed_linear] act: {act!r} is unknown; {valid}", field="act")
    if act != "none" and not (weight.dtype.is_block and weight.dtype.has_codes):
        raise ConfigError(
            f"[packed_linear] act: expected none for a weight in {weight.dtype}, got {act!r}",
            field="act",
        )
    out = check.output(out, (*x.shape[:-1], weight.shape[0]), x.dtype)
    check.disjoint("out", out, x=x, weight=weight.data)
    if weight.columns is not None:
        x = take_columns(x, weight.columns)
    PACKED_LINEAR(out, x, weight, bias, act)
    return out


@PACKED_LINEAR.reference
def _packed_linear(
    out: Array, x: Array, weight: PackedTensor, bias: Array | None, act: str
) -> None:
    tile_elements = TILE_ROWS * max(1, weight.shape[1])
    step = max(1, _RUN_ELEMENTS // tile_elements)
    for first in range(0, weight.num_tiles, step):
        part = unpack_tiles(weight, first, min(first + step, weight.num_tiles))
        start = first * TILE_ROWS
        rows = slice(start, start + part.shape[0])
        part_bias = None if bias is None else bias[rows]
        if isinstance(part, QuantTensor):
            QUANT_LINEAR.reference_kernel(out[..., rows], x, part, part_bias, act)
        else:
            LINEAR.reference_kernel(out[..., rows], x, part, part_bias)


def packed_embedding(
    input_ids: Array,
    weight: PackedTensor,
    *,
    dtype: DType | str | None = None,
    out: Array | None = None,
) -> Array:
    """Look rows up in a packed table; the values of ``embedding`` and ``quant_embedding``.

    Args:
        input_ids: ``[T]`` i32|i64, each in ``[0, V)``.
        weight: ``[V, H]``, from ``prepack_weight``.
        dtype: f64|f32|bf16|f16, or its name; None is the dtype of a plain weight, f32 for blocks.
        out: ``[T, H]`` of that dtype.

    Returns:
        ``out``.

    Raises:
        ShapeError: also for an id outside ``[0, V)``.
        DTypeError.
    """
    _check_packed("packed_embedding", weight)
    check = Check("packed_embedding")
    check.tensor("input_ids", input_ids, "T", (I32, I64))
    check.tensor("weight", weight, "V H", _PACKED_DTYPES)
    check.index("input_ids", input_ids, weight.shape[0])
    if dtype is None:
        dtype = F32 if weight.dtype.is_block else weight.dtype
    to = check.named_dtype("dtype", dtype, FLOATS)
    out = check.output(out, (len(input_ids), weight.shape[1]), to)
    check.disjoint("out", out, weight=weight.data)
    PACKED_EMBEDDING(out, input_ids, weight)
    return out


@PACKED_EMBEDDING.reference
def _packed_embedding(out: Array, input_ids: Array, weight: PackedTensor) -> None:
    tiles = input_ids // TILE_ROWS
    for tile in np.unique(tiles).tolist():
        tokens = np.flatnonzero(tiles == tile)
        part = unpack_tiles(weight, tile, tile + 1)
        rows = np.empty((len(tokens), weight.shape[1]), out.dtype)
        lookup = QUANT_EMBEDDING if isinstance(part, QuantTensor) else EMBEDDING
        lookup.reference_kernel(rows, input_ids[tokens] % TILE_ROWS, part)
        out[tokens] = rows


def _check_packed(op: str, weight: object) -> None:
    if not isinstance(weight, PackedTensor):
        raise DTypeError(
            f"[{op}] weight: expected a PackedTensor, got {type(weight).__name__}; "
            "make it with prepack_weight"
        )
