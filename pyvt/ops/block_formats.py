"""The packed weight formats: how blocks of each become a panel of int8 codes with f32 scales.

A *panel* says what B blocks of a format hold: every element is ``scale · code + min``, where a
group of 32 or 16 neighbours shares the scale and the min. A format is one row of ``FORMATS``: the
layout of its block and a function that makes the panel. ``dequantize`` and both forms of
``quant_linear`` read weights through it and nothing else.

Scales are formed in f32 as ``d · scale`` and values as ``scale · code + min`` in that order, which
is to the bit what ggml does.

Dims: B blocks, G groups of a block, S elements of a group.

Source: ggml ``ggml-common.h`` and ``dequantize_row_*``; the ``gguf`` package's ``gguf.quants``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import DType
from pyvt.tensor.iq_grids import iq_grid
from pyvt.tensor.scaled_layout import SCALED_LAYOUTS


@dataclass(frozen=True, slots=True)
class Panel:
    """Decoded blocks.

    Attributes:
        codes: int8 ``[B, G, S]``, elements in order; f32 for a format without integer codes.
        scales: f32 ``[B, G]``.
        mins: f32 ``[B, G]``, None where the format has none.
    """

    codes: Array
    scales: Array
    mins: Array | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format: the fields of a block, the group size S, and the decoder."""

    layout: "np.dtype[np.void]"
    group_size: int
    decode: Callable[[Array], Panel]


IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the value of an e2m1 number, so that it is an integer; the scale is halved.
FP4_LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode_panel(dtype: DType, blocks: Array) -> Panel:
    """Return the panel of uint8 blocks ``[..., n · block_bytes]``, B being all of them in order.

    Scales that are not finite stay so.
    """
    block_format = FORMATS[dtype.name]
    packed = np.ascontiguousarray(blocks).reshape(-1, dtype.block_bytes)
    panel = block_format.decode(packed.view(block_format.layout)[:, 0])
    codes = panel.codes.reshape(len(packed), -1, block_format.group_size)
    return Panel(codes, panel.scales, panel.mins)


def _unpack(packed: Array, bits: int, width: int) -> Array:
    """Spread bytes into fields of ``bits``: each run of ``width`` bytes gives its low fields first.

    ``[B, n · width]`` uint8 becomes ``[B, n · (8 / bits) · width]``.
    """
    runs = packed.reshape(len(packed), -1, width)
    fields = np.empty((len(packed), runs.shape[1], 8 // bits, width), np.uint8)
    for i in range(8 // bits):
        np.right_shift(runs, i * bits, out=fields[:, :, i])
    np.bitwise_and(fields, (1 << bits) - 1, out=fields)
    return fields.reshape(len(packed), -1)


def _f32(field: Array) -> Array:
    """Return f16 scales ``[B]`` as f32 ``[B, 1]``."""
    return field.astype(np.float32)[:, None]


def _signed(codes: Array, offset: int = 0) -> Array:
    """Return small unsigned codes less an offset as int8, in place."""
    signed = codes.view(np.int8)
    if offset:
        signed -= np.int8(offset)
    return signed


def _q4_0(block: Array) -> Panel:
    return Panel(_signed(_unpack(block["qs"], 4, 16), 8), _f32(block["d"]))


def _q4_1(block: Array) -> Panel:
    return Panel(_signed(_unpack(block["qs"], 4, 16)), _f32(block["d"]), _f32(block["m"]))


def _five_bits(block: Array) -> Array:
    """Return codes whose fifth bit is bit i of the 32 in ``qh``."""
    codes = _unpack(block["qs"], 4, 16)
    codes |= np.unpackbits(block["qh"], axis=1, bitorder="little") << 4
    return codes


def _q5_0(block: Array) -> Panel:
    return Panel(_signed(_five_bits(block), 16), _f32(block["d"]))


def _q5_1(block: Array) -> Panel:
    return Panel(_signed(_five_bits(block)), _f32(block["d"]), _f32(block["m"]))


def _q8_0(block: Array) -> Panel:
    return Panel(block["qs"].copy(), _f32(block["d"]))


def _q2_k(block: Array) -> Panel:
    codes = _unpack(block["qs"], 2, 32)
    scales = _f32(block["d"]) * (block["sc"] & 15)
    mins = -(_f32(block["dmin"]) * (block["sc"] >> 4))
    return Panel(_signed(codes), scales, mins)


def _q3_k(block: Array) -> Panel:
    codes = _unpack(block["qs"], 2, 32)
    codes |= _unpack(block["hmask"], 1, 32) << 2
    low, high = block["sc"][:, :8], block["sc"][:, 8:]
    steps = _unpack(low, 4, 8) | (_unpack(high, 2, 4) << 4)
    return Panel(_signed(codes, 4), _f32(block["d"]) * _signed(steps, 32))


def _six_bit_pairs(packed: Array) -> tuple[Array, Array]:
    """Return the 8 scales and 8 mins of a superblock from their 12 bytes, uint8 ``[B, 8]`` each."""
    first, second, low = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (low & 15) | (first >> 6 << 4)), axis=1)
    mins = np.concatenate((second & 63, (low >> 4) | (second >> 6 << 4)), axis=1)
    return scales, mins


def _k_scales(block: Array) -> tuple[Array, Array]:
    scales, mins = _six_bit_pairs(block["sc"])
    return _f32(block["d"]) * scales, -(_f32(block["dmin"]) * mins)


def _q4_k(block: Array) -> Panel:
    return Panel(_signed(_unpack(block["qs"], 4, 32)), *_k_scales(block))


def _q5_k(block: Array) -> Panel:
    codes = _unpack(block["qs"], 4, 32)
    codes |= _unpack(block["qh"], 1, 32) << 4
    return Panel(_signed(codes), *_k_scales(block))


def _q6_k(block: Array) -> Panel:
    codes = _unpack(block["ql"], 4, 64)
    codes |= _unpack(block["qh"], 2, 32) << 4
    return Panel(_signed(codes, 32), _f32(block["d"]) * block["sc"])


_IQ4 = np.array(IQ4_LEVELS, np.int8)
_FP4 = np.array(FP4_LEVELS, np.int8)


def _iq4_nl(block: Array) -> Panel:
    return Panel(_IQ4[_unpack(block["qs"], 4, 16)], _f32(block["d"]))


def _iq4_xs(block: Array) -> Panel:
    steps = _unpack(block["sl"], 4, 1)
    steps |= _unpack(block["sh"], 2, 1) << 4
    scales = _f32(block["d"]) * _signed(steps, 32)
    return Panel(_IQ4[_unpack(block["qs"], 4, 16)], scales)


def _e8m0_half(exponents: Array) -> Array:
    """Return ``2^(e - 128)`` for bytes e, subnormal where it must be, as f32."""
    wide = exponents.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(1 << 21) << wide, (wide - np.uint32(1)) << np.uint32(23))
    return bits.view(np.float32)


def _ue4m3_half(codes: Array) -> Array:
    """Return half the value of unsigned e4m3 bytes as f32; the top bit does not count, 127 is 0."""
    exponent = (codes >> 3 & 15).astype(np.int32)
    mantissa = (codes & 7).astype(np.float32)
    normal = np.ldexp(mantissa + np.float32(8), exponent - 11)
    values = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    return np.where(codes == 127, np.float32(0), values)


_E8M0_HALF = _e8m0_half(np.arange(256, dtype=np.uint8))
_UE4M3_HALF = _ue4m3_half(np.arange(256, dtype=np.uint8))


def _mxfp4(block: Array) -> Panel:
    return Panel(_FP4[_unpack(block["qs"], 4, 16)], _E8M0_HALF[block["e"]][:, None])


def _nvfp4(block: Array) -> Panel:
    return Panel(_FP4[_unpack(block["qs"], 4, 8)], _UE4M3_HALF[block["sc"]])


def _sign_table() -> Array:
    """Return int8 ``[256, 8]``: −1 where the bit of the byte is set, else 1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return 1 - 2 * bits.view(np.int8)


_SIGNS = _sign_table()
# Seven bits stand for eight signs: the last makes the number of minus signs even.
_SIGNS_7 = _SIGNS[[n | (n.bit_count() & 1) << 7 for n in range(128)]]
_SHIFTS_7 = np.array([0, 7, 14, 21], np.uint32)


def _grid_codes(name: str, index: Array, signs: Array) -> Array:
    """Return the grid rows at ``index``, int8 ``[B, 256]``, with signs ``[B, 32, 8]``."""
    codes = np.take(iq_grid(name), index, axis=0).reshape(len(index), -1)
    codes *= signs.reshape(codes.shape)
    return codes


def _quarter_steps(d: Array, steps: Array) -> Array:
    return d * (np.float32(0.5) + steps) * np.float32(0.25)


def _iq2_xxs(block: Array) -> Panel:
    words = block["group"]["signs"]
    signs = _SIGNS_7[(words[..., None] >> _SHIFTS_7) & np.uint32(127)]
    codes = _grid_codes("iq2_xxs", block["group"]["index"].reshape(len(block), 32), signs)
    return Panel(codes, _quarter_steps(_f32(block["d"]), (words >> 28).astype(np.float32)))


def _iq2_xs(block: Array) -> Panel:
    words = block["qs"]
    codes = _grid_codes("iq2_xs", words & np.uint16(511), _SIGNS_7[words >> 9])
    return Panel(codes, _quarter_steps(_f32(block["d"]), _unpack(block["sc"], 4, 1)))


def _iq2_s(block: Array) -> Panel:
    index = block["qs"] | (_unpack(block["qh"], 2, 1).astype(np.uint16) << 8)
    codes = _grid_codes("iq2_s", index, _SIGNS[block["signs"]])
    return Panel(codes, _quarter_steps(_f32(block["d"]), _unpack(block["sc"], 4, 1)))


def _iq3_xxs(block: Array) -> Panel:
    words = block["signs"]
    signs = _SIGNS_7[(words[..., None] >> _SHIFTS_7) & np.uint32(127)]
    steps = np.float32(0.5) + (words >> 28).astype(np.float32)
    codes = _grid_codes("iq3_xxs", block["qs"], signs)
    return Panel(codes, _f32(block["d"]) * steps * np.float32(0.5))


def _iq3_s(block: Array) -> Panel:
    index = block["qs"] | (_unpack(block["qh"], 1, 1).astype(np.uint16) << 8)
    codes = _grid_codes("iq3_s", index, _SIGNS[block["signs"]])
    return Panel(codes, _f32(block["d"]) * (1 + 2 * _unpack(block["sc"], 4, 1)))


def _whole_scales(block: Array, num_columns: int) -> Array:
    """Return the one scale of a block for each of its groups of 32, f32 ``[B, G]``."""
    return np.repeat(block["scale"][:, None], num_columns // 32, axis=1)


def _int4(block: Array) -> Panel:
    codes = _unpack(block["qs"], 4, 16) + block["raised"][:, None]
    return Panel(_signed(codes, 16), _whole_scales(block, codes.shape[1]))


def _int8(block: Array) -> Panel:
    codes = block["qs"].copy()
    return Panel(codes, _whole_scales(block, codes.shape[1]))


# e4m3 has no infinities; 0x7f and 0xff are NaN.
_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _scaled_nvfp4(block: Array) -> Panel:
    scales = _E4M3[block["sc"]] * block["scale"][:, None]
    return Panel(_FP4[_unpack(block["qs"], 4, 8)], scales * np.float32(0.5))


def _fp8(block: Array) -> Panel:
    values = _E4M3[block["qs"]]
    return Panel(values, _whole_scales(block, values.shape[1]))


def _layout(*fields: tuple[str, object] | tuple[str, object, int]) -> "np.dtype[np.void]":
    return np.dtype(list(fields))


_D = ("d", "<f2")
_M = ("m", "<f2")
_DMIN = ("dmin", "<f2")
_IQ2_XXS_GROUP = np.dtype([("index", "u1", 4), ("signs", "<u4")])


# By kind: the columns of a group of a panel, and the decoder.
_SCALED = {
    "int4": (32, _int4),
    "int8": (32, _int8),
    "nvfp4": (16, _scaled_nvfp4),
    "fp8": (32, _fp8),
}


def _scaled_format(name: str) -> BlockFormat:
    return BlockFormat(SCALED_LAYOUTS[name], *_SCALED[name.partition("_")[0]])


FORMATS: dict[str, BlockFormat] = {
    "q4_0": BlockFormat(_layout(_D, ("qs", "u1", 16)), 32, _q4_0),
    "q4_1": BlockFormat(_layout(_D, _M, ("qs", "u1", 16)), 32, _q4_1),
    "q5_0": BlockFormat(_layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), 32, _q5_0),
    "q5_1": BlockFormat(_layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), 32, _q5_1),
    "q8_0": BlockFormat(_layout(_D, ("qs", "i1", 32)), 32, _q8_0),
    "q2_k": BlockFormat(_layout(("sc", "u1", 16), ("qs", "u1", 64), _D, _DMIN), 16, _q2_k),
    "q3_k": BlockFormat(
        _layout(("hmask", "u1", 32), ("qs", "u1", 64), ("sc", "u1", 12), _D), 16, _q3_k
    ),
    "q4_k": BlockFormat(_layout(_D, _DMIN, ("sc", "u1", 12), ("qs", "u1", 128)), 32, _q4_k),
    "q5_k": BlockFormat(
        _layout(_D, _DMIN, ("sc", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)), 32, _q5_k
    ),
    "q6_k": BlockFormat(
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("sc", "i1", 16), _D), 16, _q6_k
    ),
    "iq2_xxs": BlockFormat(_layout(_D, ("group", _IQ2_XXS_GROUP, 8)), 32, _iq2_xxs),
    "iq2_xs": BlockFormat(_layout(_D, ("qs", "<u2", 32), ("sc", "u1", 8)), 16, _iq2_xs),
    "iq3_xxs": BlockFormat(_layout(_D, ("qs", "u1", 64), ("signs", "<u4", 8)), 32, _iq3_xxs),
    "iq4_nl": BlockFormat(_layout(_D, ("qs", "u1", 16)), 32, _iq4_nl),
    "iq3_s": BlockFormat(
        _layout(_D, ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("sc", "u1", 4)),
        32,
        _iq3_s,
    ),
    "iq2_s": BlockFormat(
        _layout(_D, ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("sc", "u1", 8)),
        16,
        _iq2_s,
    ),
    "iq4_xs": BlockFormat(
        _layout(_D, ("sh", "u1", 2), ("sl", "u1", 4), ("qs", "u1", 128)), 32, _iq4_xs
    ),
    "mxfp4": BlockFormat(_layout(("e", "u1"), ("qs", "u1", 16)), 32, _mxfp4),
    "nvfp4": BlockFormat(_layout(("sc", "u1", 4), ("qs", "u1", 32)), 16, _nvfp4),
    **{name: _scaled_format(name) for name in SCALED_LAYOUTS},
}
