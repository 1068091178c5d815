"""GGUFSource: the tensors of a GGUF model, one file or a split set, under canonical names.

Undone on the way: q and k rows of architectures that store them for a rotation of adjacent pairs
come back in the order of Hugging Face; a fused qkv is three tensors; fused gates and ups of experts
are two; an axis of size 1 that a converter takes out is put back.

Dims: N heads, D head size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import rows_of_matrices
from pyvt.weights import gguf_names
from pyvt.weights.gguf_reader import GGUFFile, GGUFTensor, read_gguf
from pyvt.weights.shards import member_path, missing_shard, numbered_name
from pyvt.weights.source import Tensor, TensorInfo, unknown_tensor

__all__ = ["GGUFFile", "GGUFSource", "GGUFTensor", "open_gguf", "read_gguf"]

_ATTENTION = ("q_proj", "k_proj", "v_proj")
# Tensors that files hold without an axis of size 1, and its place.
_SQUEEZED = {".linear_attn.conv1d.weight": 1, ".mlp.shared_expert_gate.weight": 0}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a canonical tensor lies: all rows or a slice, and the heads of rows to unpermute.

    ``rows`` counts in each matrix where the tensor is a stack of them.
    ``new_axis`` is the place of an axis of size 1 that is not stored.
    """

    file: GGUFFile
    tensor: GGUFTensor
    rows: slice | None = None
    permuted_heads: int | None = None
    new_axis: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.new_axis is not None:
            return (*self.tensor.shape[: self.new_axis], 1, *self.tensor.shape[self.new_axis :])
        if self.rows is None:
            return self.tensor.shape
        shape = list(self.tensor.shape)
        shape[self.row_axis] = self.rows.stop - self.rows.start
        return tuple(shape)

    @property
    def row_axis(self) -> int:
        return 1 if len(self.tensor.shape) == 3 else 0


class GGUFSource:
    """The tensors of one file or of all parts of a split model, under canonical names.

    Attributes:
        metadata: the metadata of the first part, which holds the model's.
        files: the open parts, for whoever wants tensors as they are stored.
    """

    def __init__(self, files: Sequence[GGUFFile]) -> None:
        """Merge parts. Raises CheckpointError where two tensors come to one canonical name."""
        self.files = tuple(files)
        self._places: dict[str, _Place] = {}
        self.path = files[0].path
        self.metadata = files[0].metadata
        self.architecture = self._architecture()
        self._num_layers = self._count_layers()
        self._stored = frozenset(name for file in files for name in file.tensors)
        for file in files:
            for tensor in file.tensors.values():
                for name, place in self._locate(file, tensor).items():
                    self._add(name, place)

    def names(self) -> Iterable[str]:
        """Return the canonical names, in file order."""
        return self._places.keys()

    def info(self, name: str) -> TensorInfo:
        """Return what the tensor table says about a tensor."""
        place = self._place(name)
        dtype, shape = place.tensor.dtype, place.shape
        nbytes = place.tensor.nbytes
        if place.rows is not None:
            axis = place.row_axis
            nbytes = nbytes // place.tensor.shape[axis] * shape[axis]
        return TensorInfo(name, dtype, shape, nbytes, place.file.path)

    def get(self, name: str) -> Tensor:
        """Return a tensor as a view of the mapped file; a copy where its rows are permuted."""
        place = self._place(name)
        stored = place.tensor
        tensor = place.file.mapped.tensor(stored.name, stored.dtype, stored.shape, stored.offset)
        if place.rows is not None:
            select = rows_of_matrices if place.row_axis else _rows
            tensor = select(tensor, place.rows)
        if place.new_axis is not None and isinstance(tensor, np.ndarray):
            tensor = tensor.reshape(place.shape)
        if place.permuted_heads is None:
            return tensor
        tensor = _rows(tensor, _unpermuted_rows(tensor.shape[0], place.permuted_heads))
        (tensor.blocks if isinstance(tensor, QuantTensor) else tensor).flags.writeable = False
        return tensor

    def release(self) -> None:
        """Take the pages of the mapped files out of memory."""
        for file in self.files:
            file.mapped.release()

    def close(self) -> None:
        """Let go of the mapped files."""
        for file in self.files:
            file.mapped.close()

    def _architecture(self) -> str:
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._error("general.architecture, a string", repr(architecture)[:80])
        return architecture

    def _count_layers(self) -> int | None:
        """Return the layers before those of the draft head, None where a file counts none."""
        blocks, drafts = (
            self.metadata.get(f"{self.architecture}.{key}")
            for key in ("block_count", "nextn_predict_layers")
        )
        if type(blocks) is not int or type(drafts) is not int or not 0 < drafts < blocks:
            return None
        return blocks - drafts

    def _add(self, name: str, place: _Place) -> None:
        if name in self._places:
            other = self._places[name]
            raise self._error(
                "it once",
                f"it as {other.tensor.name!r} in {str(other.file.path)!r} and as "
                f"{place.tensor.name!r} here",
                name,
                place.file.path,
            )
        self._places[name] = place

    def _locate(self, file: GGUFFile, tensor: GGUFTensor) -> dict[str, _Place]:
        """Return the canonical tensors that one stored tensor holds."""
        fused = gguf_names.fused_qkv_stem(self.architecture, tensor.name)
        if fused is not None and not gguf_names.has_linear_mark(tensor.name, self._stored):
            return self._split_qkv(file, tensor, *fused)
        experts = gguf_names.fused_experts_stem(self.architecture, tensor.name)
        if experts is not None:
            return self._split_experts(file, tensor, experts)
        name = gguf_names.canonical_name(self.architecture, tensor.name, self._num_layers)
        if name is None:
            return {tensor.name: _Place(file, tensor)}
        for tail, axis in _SQUEEZED.items():
            if name.endswith(tail) and len(tensor.shape) == axis + 1:
                return {name: _Place(file, tensor, new_axis=axis)}
        heads = self._permuted_heads(name)
        if heads is not None:
            self._check_heads(tensor, tensor.shape[0] if tensor.shape else 0, heads)
        return {name: _Place(file, tensor, None, heads)}

    def _split_qkv(
        self, file: GGUFFile, tensor: GGUFTensor, prefix: str, suffix: str
    ) -> dict[str, _Place]:
        layer = int(prefix.split(".")[2])
        num_heads = self._count("attention.head_count", layer)
        num_kv_heads = self._count("attention.head_count_kv", layer, num_heads)
        if f"{self.architecture}.attention.key_length" in self.metadata:
            key_length = self._count("attention.key_length", layer)
        else:
            key_length = self._count("embedding_length", layer) // num_heads
        value_length = self._count("attention.value_length", layer, key_length)
        if self.architecture in gguf_names.GATED_Q:
            num_heads *= 2
        sizes = (num_heads * key_length, num_kv_heads * key_length, num_kv_heads * value_length)
        if not tensor.shape or tensor.shape[0] != sum(sizes):
            raise self._error(f"{sum(sizes)} rows of q, k, v", str(tensor.shape), tensor.name)
        places, start = {}, 0
        for projection, size in zip(_ATTENTION, sizes, strict=True):
            name = gguf_names.draft_layer_name(prefix + projection + suffix, self._num_layers)
            heads = self._permuted_heads(name)
            if heads is not None:
                self._check_heads(tensor, size, heads)
            places[name] = _Place(file, tensor, slice(start, start + size), heads)
            start += size
        return places

    def _split_experts(self, file: GGUFFile, tensor: GGUFTensor, prefix: str) -> dict[str, _Place]:
        if len(tensor.shape) != 3 or tensor.shape[1] == 0 or tensor.shape[1] % 2:
            raise self._error(
                "gate and up rows of each expert, [E, 2I, H]", str(tensor.shape), tensor.name
            )
        half = tensor.shape[1] // 2
        return {
            f"{prefix}gate_proj.weight": _Place(file, tensor, slice(0, half)),
            f"{prefix}up_proj.weight": _Place(file, tensor, slice(half, 2 * half)),
        }

    def _permuted_heads(self, name: str) -> int | None:
        """Return the heads of a canonical tensor with permuted rows, None for all others."""
        if self.architecture not in gguf_names.PERMUTED_QK or ".self_attn." not in name:
            return None
        layer, projection = int(name.split(".")[2]), name.split(".")[4]
        if projection == "q_proj":
            return self._count("attention.head_count", layer)
        if projection == "k_proj":
            num_heads = self._count("attention.head_count", layer)
            return self._count("attention.head_count_kv", layer, num_heads)
        return None

    def _check_heads(self, tensor: GGUFTensor, num_rows: int, heads: int) -> None:
        if num_rows == 0 or num_rows % (2 * heads):
            raise self._error(f"rows of {heads} heads of even size", str(num_rows), tensor.name)

    def _count(self, key: str, layer: int, default: int | None = None) -> int:
        """Return a positive count of the metadata, which may be one or one a layer."""
        key = f"{self.architecture}.{key}"
        value: Any = self.metadata.get(key, default)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        if type(value) is not int or value < 1:
            raise self._error(f"a positive {key} for layer {layer}", repr(value)[:80])
        return value

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise unknown_tensor(self.path, name, self._places)
        return self._places[name]

    def _error(
        self, expected: str, got: str, tensor: str | None = None, path: Path | None = None
    ) -> CheckpointError:
        path = path or self.path
        subject = "" if tensor is None else f"tensor {tensor!r} "
        return CheckpointError(
            f"[gguf] {str(path)!r}: {subject}expected {expected}, got {got}",
            path=path,
            tensor=tensor,
        )


def open_gguf(path: Path) -> GGUFSource:
    """Open a GGUF model by its file, or by any part of a split one.

    Raises CheckpointError for a missing part, parts of different models, and a tensor in two parts.
    """
    first = read_gguf(path)
    count = first.metadata.get("split.count", 1)
    if count in (0, 1):
        return GGUFSource([first])
    numbered = numbered_name(path.name)
    if numbered is None or numbered.count != count:
        raise CheckpointError(
            f"[gguf] {str(path)!r}: expected a name that ends in -00001-of-0000N.gguf for a model "
            f"of {count!r} parts, got another; give the parts their names back",
            path=path,
        )
    files = []
    for number in range(1, numbered.count + 1):
        part = member_path(path.parent, numbered.part(number))
        if not part.exists():
            raise missing_shard(path.parent, part.name)
        file = first if number == numbered.number else read_gguf(part)
        _check_part(file, number, count)
        files.append(file)
    total = sum(len(file.tensors) for file in files)
    expected = files[0].metadata.get("split.tensors.count", total)
    if total != expected:
        raise CheckpointError(
            f"[gguf] {str(path)!r}: expected {expected!r} tensors in {count} parts, got {total}; "
            "download the model again",
            path=path,
        )
    return GGUFSource(files)


def _check_part(file: GGUFFile, number: int, count: int) -> None:
    got = (file.metadata.get("split.no"), file.metadata.get("split.count"))
    if got != (number - 1, count):
        raise CheckpointError(
            f"[gguf] {str(file.path)!r}: expected split.no {number - 1} of split.count {count}, "
            f"got {got[0]!r} of {got[1]!r}; the parts belong to different models",
            path=file.path,
        )


def _rows(tensor: Tensor, index: Any) -> Tensor:
    return tensor.rows(index) if isinstance(tensor, QuantTensor) else tensor[index]


def _unpermuted_rows(num_rows: int, num_heads: int) -> "np.ndarray[Any, np.dtype[np.intp]]":
    """Return the stored row of each row: ``h·D + s·(D/2) + i`` lies at ``h·D + 2i + s``."""
    pairs = np.arange(num_rows).reshape(num_heads, num_rows // num_heads // 2, 2)
    return pairs.swapaxes(1, 2).reshape(-1)
