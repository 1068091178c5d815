"""Which element type each tensor of a model gets: the file types and their mixes (data, mostly).

A file type has a type for most matrices, and others for those that lose most by it. Vectors, norms,
and the small weights that steer others (routers, convolutions, decay) are kept in f32. A row that
is no multiple of a type's block takes the next type of ``FALLBACKS``.

Source: llama.cpp ``llama_tensor_get_type``; ``tensor_type_fallback``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyvt.errors import ConfigError, did_you_mean
from pyvt.tensor.dtype import F16, F32, DType, dtype_named


@dataclass(frozen=True, slots=True, kw_only=True)
class FileType:
    """One value of ``--type``.

    Attributes:
        name: as llama.cpp spells it.
        gguf_id: ``general.file_type``.
        most: type of most matrices.
        more: type of half of the value and down projections, those at the ends and every third.
        fused: type of a fused q, k and v, or of a GDN layer's in-projection.
        head: type of the head, or of an embedding that is the head too.
    """

    name: str
    gguf_id: int
    most: str
    more: str | None = None
    fused: str | None = None
    head: str | None = None


FILE_TYPES: Mapping[str, FileType] = {
    row.name: row
    for row in (
        FileType(name="F32", gguf_id=0, most="f32"),
        FileType(name="F16", gguf_id=1, most="f16"),
        FileType(name="BF16", gguf_id=32, most="bf16"),
        FileType(name="Q8_0", gguf_id=7, most="q8_0"),
        FileType(name="Q6_K", gguf_id=18, most="q6_k"),
        FileType(name="Q5_K_M", gguf_id=17, most="q5_k", more="q6_k", fused="q6_k", head="q6_k"),
        FileType(name="Q4_K_M", gguf_id=15, most="q4_k", more="q6_k", fused="q5_k", head="q6_k"),
        FileType(name="Q4_0", gguf_id=2, most="q4_0", head="q6_k"),
    )
}

# Tensors that are never packed, by GGUF name: what they steer is worth more than their bytes.
KEPT = re.compile(
    r"(?:.*_norm|.*\.ffn_gate_inp(?:_shexp)?|.*\.ssm_(?:conv1d|a|dt|norm)|rope_freqs"
    r"|.*\.nextn\.(?:enorm|hnorm))(?:\.weight|\.bias)?"
)
_MORE = re.compile(r"blk\.(\d+)\.(?:attn_v|ffn_down|ffn_down_exps|ffn_down_shexp)\.weight")
_FUSED = re.compile(r"blk\.\d+\.attn_qkv\.weight")
FALLBACKS: Mapping[str, str] = {
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "q4_0": "f16",
    "q5_0": "f16",
    "q5_1": "f16",
    "q8_0": "f16",
}


def file_type_named(name: str) -> FileType:
    """Return the file type of a name, in any case. Raises ConfigError with the valid ones."""
    found = FILE_TYPES.get(name.upper())
    if found is None:
        raise ConfigError(
            f"[quantize] type: {name!r} is unknown; {did_you_mean(name.upper(), FILE_TYPES)}",
            field="type",
        )
    return found


def tensor_dtype(
    file_type: FileType, name: str, shape: tuple[int, ...], *, num_layers: int, is_tied: bool
) -> DType:
    """Return the type of a tensor in a file.

    Args:
        file_type: what was asked for.
        name: GGUF name.
        shape: logical shape, row-major.
        num_layers: layers of the model, MTP blocks not counted.
        is_tied: whether the embedding is the head too.
    """
    if len(shape) < 2 or KEPT.fullmatch(name):
        return F32
    dtype = dtype_named(_wanted(file_type, name, num_layers, is_tied))
    while shape[-1] % dtype.block_size:
        dtype = dtype_named(FALLBACKS.get(dtype.name, F16.name))
    return dtype


def _wanted(file_type: FileType, name: str, num_layers: int, is_tied: bool) -> str:
    is_head = name == "output.weight" or (is_tied and name == "token_embd.weight")
    if is_head and file_type.head:
        return file_type.head
    if file_type.fused and _FUSED.fullmatch(name):
        return file_type.fused
    found = _MORE.fullmatch(name)
    if found and file_type.more and deserves_more(int(found[1]), num_layers):
        return file_type.more
    return file_type.most


def deserves_more(layer: int, num_layers: int) -> bool:
    """Return whether a layer is in the first or last eighth, or every third of those between."""
    eighth = num_layers // 8
    is_end = layer < eighth or layer >= 7 * num_layers // 8
    return is_end or (layer - eighth) % 3 == 2
