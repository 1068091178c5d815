"""Write small checkpoints, sound or broken on purpose, for tests and benchmarks.

``write_safetensors`` and ``write_gguf`` write models. The ``*_bytes`` functions below them put one
file together from parts that need not fit, so that a test can break exactly one of them.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from pyvt.errors import UnsupportedError
from pyvt.mathutil import cdiv, round_up
from pyvt.packed_texts import PackedTexts
from pyvt.tensor.dtype import dtype_of
from pyvt.tensor.quant_tensor import QuantTensor

Array = np.ndarray[Any, Any]
Tensor = Array | QuantTensor

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMS = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<?",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A GGUF metadata value with its type number, where the plain Python value would get another.

    The type of an array is that of its elements.
    """

    kind: int
    value: Any


def write_safetensors(
    folder: Path,
    tensors: Mapping[str, Array],
    config: Mapping[str, Any],
    *,
    shards: int = 1,
    files: Mapping[str, str | Mapping[str, Any]] | None = None,
) -> Path:
    """Write a model folder: config.json, weights in ``shards`` files with an index, other files.

    Args:
        folder: made where it is missing.
        tensors: names as stored; any dtype of safetensors.
        config: content of config.json.
        shards: 1 writes model.safetensors, more writes numbered shards and their index.
        files: name → text, or an object to be written as JSON.

    Returns:
        ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = _split(tensors, shards)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        name = "model.safetensors"
        if shards > 1:
            name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        contiguous = {key: np.asarray(value, order="C") for key, value in group.items()}
        safetensors.numpy.save_file(contiguous, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(group, name)
    contents: dict[str, Any] = {"config.json": config, **(files or {})}
    if shards > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        contents["model.safetensors.index.json"] = {
            "metadata": {"total_size": total},
            "weight_map": weight_map,
        }
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    splits: int = 1,
    alignment: int = 32,
) -> Path:
    """Write a GGUF model, packed weights as they are.

    Args:
        path: the file; with ``splits`` > 1 a name whose stem gets ``-00001-of-0000N``.
        metadata: key → bool, int, float, str, a list of these, or ``Typed``.
        tensors: GGUF names → arrays or packed weights; nothing is permuted.
        splits: number of files; the metadata goes into the first.
        alignment: of the data; written as ``general.alignment`` where it is not 32.

    Returns:
        The path of the (first) file.
    """
    base = dict(metadata)
    if alignment != 32:
        base["general.alignment"] = Typed(U32, alignment)
    if splits == 1:
        path.write_bytes(gguf_bytes(base, tensors, alignment=alignment))
        return path
    paths = []
    for index, group in enumerate(_split(tensors, splits)):
        split = {
            "split.no": Typed(U16, index),
            "split.count": Typed(U16, splits),
            "split.tensors.count": Typed(I32, len(tensors)),
        }
        if alignment != 32:
            split["general.alignment"] = Typed(U32, alignment)
        content = gguf_bytes((base if index == 0 else {}) | split, group, alignment=alignment)
        paths.append(path.with_name(f"{path.stem}-{index + 1:05d}-of-{splits:05d}{path.suffix}"))
        paths[-1].write_bytes(content)
    return paths[0]


def safetensors_bytes(
    header: Mapping[str, Any] | str | bytes, data: bytes = b"", *, length: int | None = None
) -> bytes:
    """Return a safetensors file of a header (an object, or raw text) and data.

    ``length`` replaces the header's true length.
    """
    if isinstance(header, Mapping):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], *, alignment: int = 32
) -> bytes:
    """Return a sound GGUF file, version 3."""
    infos, data = [], bytearray()
    for name, tensor in tensors.items():
        infos.append(gguf_info(name, tensor.shape[::-1], _type_id(tensor), len(data)))
        raw = (tensor.blocks if isinstance(tensor, QuantTensor) else tensor).tobytes()
        data += raw.ljust(round_up(len(raw), alignment), b"\0")
    pairs = [gguf_pair(key, value) for key, value in metadata.items()]
    return gguf_file(pairs, infos, bytes(data), alignment=alignment)


def gguf_file(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Return a file of encoded pairs and infos; the counts may be made to differ from them."""
    header = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(infos) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header += b"".join(pairs) + b"".join(infos)
    return header.ljust(round_up(len(header), alignment), b"\0") + data


def gguf_pair(key: str | bytes, value: Any) -> bytes:
    """Return one encoded metadata pair."""
    kind = _kind(value)
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, list | tuple | PackedTexts):
        items = b"".join(gguf_value(kind, item) for item in value)
        return gguf_string(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + items
    return gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)


def gguf_value(kind: int, value: Any) -> bytes:
    """Return one encoded scalar or string, without its type."""
    return gguf_string(value) if kind == STRING else struct.pack(_FORMS[kind], value)


def gguf_string(text: str | bytes, *, length: int | None = None) -> bytes:
    """Return an encoded string; ``length`` replaces its true length."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def gguf_info(
    name: str | bytes, dims: Iterable[int], type_id: int, offset: int, *, rank: int | None = None
) -> bytes:
    """Return one encoded row of the tensor table; ``dims`` with the fastest axis first."""
    sizes = tuple(dims)
    return (
        gguf_string(name)
        + struct.pack("<I", len(sizes) if rank is None else rank)
        + struct.pack(f"<{len(sizes)}Q", *sizes)
        + struct.pack("<IQ", type_id, offset)
    )


def permute_qk_rows(weight: Array, num_heads: int) -> Array:
    """Return q or k rows in the order that llama GGUFs store: adjacent pairs in each head.

    Source: llama.cpp ``LlamaModel.permute``.
    """
    half = weight.shape[0] // num_heads // 2
    split = weight.reshape(num_heads, 2, half, *weight.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(weight.shape)


def _split(tensors: Mapping[str, Any], parts: int) -> list[dict[str, Any]]:
    """Cut tensors into runs of equal number; the last ones may be empty."""
    names = list(tensors)
    step = max(cdiv(len(names), parts), 1)
    runs = [names[index * step : (index + 1) * step] for index in range(parts)]
    return [{name: tensors[name] for name in run} for run in runs]


def _type_id(tensor: Tensor) -> int:
    dtype = tensor.dtype if isinstance(tensor, QuantTensor) else dtype_of(tensor)
    if dtype.gguf_id is None:
        raise UnsupportedError(f"[checkpoints] tensor: expected a dtype of GGUF, got {dtype}")
    return dtype.gguf_id


def _kind(value: Any) -> int:
    match value:
        case Typed():
            return value.kind
        case list() | tuple():
            kinds = [_kind(item) for item in value]
            return max(kinds, default=STRING)
        case bool():
            return BOOL
        case int():
            if value < 0:
                return I32 if value >= -(2**31) else I64
            return U32 if value < 2**32 else U64
        case float():
            return F32
        case str() | bytes() | PackedTexts():
            return STRING
    raise UnsupportedError(
        f"[checkpoints] metadata: expected bool, int, float, str or list, got {value!r}"
    )
