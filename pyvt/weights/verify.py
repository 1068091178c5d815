"""Scan an open model for damage that no header shows: NaN, infinity, layers that differ.

Opening a model has already checked shards, sizes, offsets and dtypes. The scan reads every byte of
the weights once, a chunk at a time.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.tensor import dtype as dt
from pyvt.tensor.dtype import DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.resolve import ModelFiles
from pyvt.weights.source import Tensor, TensorInfo

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 4 << 20
# A value is NaN or infinite when all of these bits are set; fp8_e4m3 has no infinity.
_NOT_FINITE: dict[DType, tuple[str, int]] = {
    dt.F64: ("<u8", 0x7FF0_0000_0000_0000),
    dt.F32: ("<u4", 0x7F80_0000),
    dt.F16: ("<u2", 0x7C00),
    dt.BF16: ("<u2", 0x7F80),
    dt.FP8_E4M3: ("u1", 0x7F),
    dt.FP8_E5M2: ("u1", 0x7C),
}
# Byte offsets of the f16 scales in a block.
_F16_SCALES: dict[DType, tuple[int, ...]] = {
    **dict.fromkeys((dt.Q4_0, dt.Q5_0, dt.Q8_0, dt.IQ4_NL, dt.IQ4_XS), (0,)),
    **dict.fromkeys((dt.IQ2_XXS, dt.IQ2_XS, dt.IQ2_S, dt.IQ3_XXS, dt.IQ3_S), (0,)),
    **dict.fromkeys((dt.Q4_1, dt.Q5_1, dt.Q4_K, dt.Q5_K), (0, 2)),
    dt.Q2_K: (80, 82),
    dt.Q3_K: (108,),
    dt.Q6_K: (208,),
}
_E8M0_NAN = 0xFF
_E4M3_NAN = 0x7F
_UE4M3_SIGN = 0x80
# A layer with one of these has other tensors than the layers without.
_MARKS = ("mlp.experts.", "linear_attn.")
_LAYER = re.compile(r"^model\.layers\.(\d+)\.", re.ASCII)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: the file, the tensor it is in, and what is wrong."""

    path: Path
    tensor: str
    message: str

    def __str__(self) -> str:
        return f"{self.path.name}: {self.tensor}: {self.message}"


def verify_model(files: ModelFiles) -> Iterator[Finding]:
    """Yield what is wrong with an open model; nothing for a sound one.

    Layers come first (cheap), then the values of every float tensor and of every block's scales.
    Peak memory is a few times ``CHUNK_BYTES``, whatever the model's size.
    """
    infos = {name: files.source.info(name) for name in files.source.names()}
    yield from _check_layers(infos)
    for name, info in infos.items():
        num_bad = count_not_finite(files.source.get(name))
        if num_bad:
            what = "block scales" if info.dtype.is_block else "values"
            yield Finding(info.path, name, f"NaN or infinite {what}: {num_bad}")


def count_not_finite(tensor: Tensor) -> int:
    """Return how many values of a float tensor, or blocks of a packed one, are not finite."""
    if isinstance(tensor, QuantTensor):
        return sum(_bad_blocks(tensor.dtype, chunk) for chunk in _block_chunks(tensor))
    unsigned, mask = _NOT_FINITE.get(dt.dtype_of(tensor), (None, 0))
    if unsigned is None:
        return 0
    bits = tensor.reshape(-1).view(unsigned)
    step = max(CHUNK_BYTES // bits.itemsize, 1)
    return sum(
        int(np.count_nonzero((bits[start : start + step] & mask) == mask))
        for start in range(0, bits.size, step)
    )


def _block_chunks(tensor: QuantTensor) -> Iterator[Array]:
    blocks = tensor.blocks.reshape(-1, tensor.dtype.block_bytes)
    step = CHUNK_BYTES // tensor.dtype.block_bytes
    for start in range(0, len(blocks), step):
        yield blocks[start : start + step]


def _bad_blocks(dtype: DType, blocks: Array) -> int:
    """Count blocks ``[B, block_bytes]`` with a scale that is NaN, infinite or out of its range."""
    if dtype is dt.MXFP4:
        return int(np.count_nonzero(blocks[:, 0] == _E8M0_NAN))
    if dtype is dt.NVFP4:
        return int(np.count_nonzero(np.any(blocks[:, :4] & _UE4M3_SIGN, axis=1)))
    if dtype in dt.SCALED_BLOCKS:
        return int(np.count_nonzero(_bad_scaled_blocks(dtype, blocks)))
    unsigned, mask = _NOT_FINITE[dt.F16]
    is_bad = np.zeros(len(blocks), np.bool_)
    for offset in _F16_SCALES[dtype]:
        bits = blocks[:, offset : offset + 2].copy().view(unsigned)[:, 0]
        is_bad |= (bits & mask) == mask
    return int(np.count_nonzero(is_bad))


def _bad_scaled_blocks(dtype: DType, blocks: Array) -> Array:
    """Return which blocks have an f32 scale, or an e4m3 number, that is not finite."""
    unsigned, mask = _NOT_FINITE[dt.F32]
    bits = blocks[:, :4].copy().view(unsigned)[:, 0]
    is_bad: Array = (bits & mask) == mask
    numbers = {"nvfp4": slice(4, 4 + dtype.block_size // 16), "fp8": slice(4, None)}
    kind = dtype.name.partition("_")[0]
    if kind in numbers:
        is_bad |= np.any((blocks[:, numbers[kind]] & _E4M3_NAN) == _E4M3_NAN, axis=1)
    return is_bad


def _check_layers(infos: Mapping[str, TensorInfo]) -> Iterator[Finding]:
    """Find tensors that some layer lacks or has in another shape than the first layer of its kind.

    Layers of a kind have the same marks among their names.
    """
    layers: dict[int, dict[str, TensorInfo]] = {}
    for name, info in infos.items():
        match = _LAYER.match(name)
        if match is not None:
            layers.setdefault(int(match[1]), {})[name[match.end() :]] = info
    kinds: dict[tuple[bool, ...], dict[int, dict[str, TensorInfo]]] = {}
    for number, tensors in sorted(layers.items()):
        kind = tuple(any(mark in suffix for suffix in tensors) for mark in _MARKS)
        kinds.setdefault(kind, {})[number] = tensors
    gap = next((n for n in range(len(layers)) if n not in layers), None)
    if gap is not None:
        next(iter(kinds.values()))[gap] = {}
    for alike in kinds.values():
        yield from _check_alike(alike)


def _check_alike(layers: Mapping[int, Mapping[str, TensorInfo]]) -> Iterator[Finding]:
    """Find in layers of one kind, by number, what differs."""
    first: dict[str, TensorInfo] = {}
    for tensors in layers.values():
        for suffix, info in tensors.items():
            other = first.setdefault(suffix, info)
            if other.shape != info.shape:
                yield Finding(
                    info.path, info.name, f"shape {info.shape}, {other.name} has {other.shape}"
                )
    for suffix, info in first.items():
        missing = next((n for n, tensors in layers.items() if suffix not in tensors), None)
        if missing is not None:
            name = f"model.layers.{missing}.{suffix}"
            yield Finding(info.path, name, "missing, other layers have it")
