"""Safetensors: a reader that trusts no byte of the file.

Format:

1. u64 little-endian: length of the header, at most what is left of the file.
2. The header, a JSON object in UTF-8, padded with spaces: ``name → {"dtype": spelling, "shape":
   [ints], "data_offsets": [begin, end]}``, and optionally ``"__metadata__"``, strings to strings.
3. The data. Offsets count from the end of the header; tensors are row-major and little-endian, lie
   back to back without gap or overlap, and fill the rest of the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvt.errors import CheckpointError
from pyvt.log import get_logger
from pyvt.tensor.dtype import DTYPES, DType, dtype_from_safetensors
from pyvt.tensor.stored import rows_of_matrices
from pyvt.weights.hf_names import canonical_hf_name, fused_experts_names
from pyvt.weights.mapped_file import MappedFile
from pyvt.weights.source import Tensor, TensorInfo, unknown_tensor
from pyvt.weights.strict_json import MAX_JSON_BYTES, parse_json_object

log = get_logger(__name__)

MAX_RANK = 8
MAX_ELEMENTS = 1 << 48
_LENGTH_BYTES = 8
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """One tensor of the header; ``offset`` counts from the start of the file."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One open file: its map and its checked header, by the names stored in it."""

    mapped: MappedFile
    entries: Mapping[str, SafetensorsEntry]
    metadata: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The file."""
        return self.mapped.path


def read_safetensors(path: Path) -> SafetensorsFile:
    """Map a file and check its whole header. Raises CheckpointError naming file and tensor."""
    mapped = MappedFile(path)
    if mapped.size < _LENGTH_BYTES:
        raise _error(path, f"at least {_LENGTH_BYTES} bytes", f"a file of {mapped.size} bytes")
    length = int.from_bytes(mapped.buffer(0, _LENGTH_BYTES), "little")
    data_start = _LENGTH_BYTES + length
    if data_start > mapped.size:
        raise _error(
            path,
            f"a header of at most {mapped.size - _LENGTH_BYTES} bytes",
            f"{length} bytes; the file is truncated or no safetensors file: download it again",
        )
    if length > MAX_JSON_BYTES:
        raise _error(path, f"a header of at most {MAX_JSON_BYTES} bytes", f"{length} bytes")
    header = parse_json_object(
        bytes(mapped.buffer(_LENGTH_BYTES, data_start)), path, "[safetensors]"
    )
    metadata = _check_metadata(path, header.pop("__metadata__", {}))
    entries = {name: _check_entry(path, name, raw, data_start) for name, raw in header.items()}
    _check_extents(path, entries, data_start, mapped.size)
    return SafetensorsFile(mapped, entries, metadata)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a canonical tensor lies: all of a stored one, or some rows of each of its matrices."""

    file: SafetensorsFile
    stored: str
    rows: slice | None = None

    @property
    def entry(self) -> SafetensorsEntry:
        return self.file.entries[self.stored]


class SafetensorsSource:
    """The tensors of one file or of all shards of a model, under canonical names.

    Attributes:
        dropped: stored names that text models do not use; they have no canonical name.
    """

    def __init__(self, files: Sequence[SafetensorsFile]) -> None:
        """Merge files. Raises CheckpointError where two tensors come to one canonical name."""
        self._files = tuple(files)
        self._places: dict[str, _Place] = {}
        self.dropped: list[str] = []
        for file in files:
            for stored in file.entries:
                name = canonical_hf_name(stored)
                if name is None:
                    self.dropped.append(stored)
                    continue
                for each, place in _places(file, stored, name).items():
                    self._add(each, place)
        if self.dropped:
            log.info("tensors not of the text model: dropped=%d", len(self.dropped))

    def names(self) -> Iterable[str]:
        """Return the canonical names, in file order."""
        return self._places.keys()

    def info(self, name: str) -> TensorInfo:
        """Return what the header says about a tensor."""
        place = self._place(name)
        shape, nbytes = place.entry.shape, place.entry.nbytes
        if place.rows is not None:
            nbytes = nbytes // shape[1] * (place.rows.stop - place.rows.start)
            shape = (shape[0], place.rows.stop - place.rows.start, shape[2])
        return TensorInfo(name, place.entry.dtype, shape, nbytes, place.file.path)

    def get(self, name: str) -> Tensor:
        """Return a tensor as a view of the mapped file; a copy where its data is misaligned."""
        place = self._place(name)
        entry = place.entry
        tensor = place.file.mapped.tensor(name, entry.dtype, entry.shape, entry.offset)
        return tensor if place.rows is None else rows_of_matrices(tensor, place.rows)

    def release(self) -> None:
        """Take the pages of the mapped files out of memory."""
        for file in self._files:
            file.mapped.release()

    def close(self) -> None:
        """Let go of the mapped files."""
        for file in self._files:
            file.mapped.close()

    def _add(self, name: str, place: _Place) -> None:
        if name in self._places:
            other = self._places[name]
            raise CheckpointError(
                f"[weights] {str(place.file.path)!r}: expected tensor {name!r} once, got it as "
                f"{place.stored!r} here and as {other.stored!r} in {str(other.file.path)!r}",
                path=place.file.path,
                tensor=name,
            )
        self._places[name] = place

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise unknown_tensor(self._files[0].path, name, self._places)
        return self._places[name]


def _places(file: SafetensorsFile, stored: str, name: str) -> dict[str, _Place]:
    """Return the canonical tensors that one stored tensor holds."""
    fused = fused_experts_names(name)
    if fused is None:
        return {name: _Place(file, stored)}
    shape = file.entries[stored].shape
    if len(shape) != 3 or shape[1] == 0 or shape[1] % 2:
        raise _error(file.path, "gate and up rows of each expert, [E, 2I, H]", str(shape), stored)
    half = shape[1] // 2
    rows = (slice(0, half), slice(half, 2 * half))
    return {each: _Place(file, stored, part) for each, part in zip(fused, rows, strict=True)}


def _error(path: Path, expected: str, got: str, tensor: str | None = None) -> CheckpointError:
    subject = "" if tensor is None else f"tensor {tensor!r} "
    return CheckpointError(
        f"[safetensors] {str(path)!r}: {subject}expected {expected}, got {got}",
        path=path,
        tensor=tensor,
    )


def _check_metadata(path: Path, metadata: Any) -> dict[str, str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return metadata
    raise _error(path, "__metadata__ of strings", "another kind of value")


def _check_entry(path: Path, name: str, raw: Any, data_start: int) -> SafetensorsEntry:
    if not isinstance(raw, dict) or raw.keys() != _ENTRY_KEYS:
        got = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise _error(path, f"an object of {sorted(_ENTRY_KEYS)}", repr(got)[:200], name)
    dtype = dtype_from_safetensors(raw["dtype"]) if isinstance(raw["dtype"], str) else None
    if dtype is None:
        known = ", ".join(d.safetensors_name for d in DTYPES.values() if d.safetensors_name)
        raise _error(path, f"a dtype of {known}", repr(raw["dtype"])[:80], name)
    shape, offsets = raw["shape"], raw["data_offsets"]
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        raise _error(path, f"a shape of at most {MAX_RANK} sizes", repr(shape)[:80], name)
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _error(path, "data_offsets [begin, end]", repr(offsets)[:80], name)
    num_elements, largest = 1, 1
    for size in shape:
        num_elements *= size
        largest *= max(size, 1)
    if largest > MAX_ELEMENTS:
        raise _error(path, f"at most {MAX_ELEMENTS} elements", f"shape {shape}"[:200], name)
    nbytes = num_elements * dtype.block_bytes
    if offsets[1] - offsets[0] != nbytes:
        raise _error(
            path,
            f"{nbytes} bytes of {dtype} {shape}",
            f"data_offsets {offsets} of {offsets[1] - offsets[0]} bytes"[:200],
            name,
        )
    return SafetensorsEntry(dtype, tuple(shape), data_start + offsets[0], nbytes)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 63 for item in value
    )


def _check_extents(
    path: Path, entries: Mapping[str, SafetensorsEntry], data_start: int, size: int
) -> None:
    """Check that the tensors fill the data without overlap, gap or rest."""
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        stop = entry.offset + entry.nbytes
        if stop > size:
            raise _error(
                path,
                f"bytes {entry.offset} to {stop} inside the file",
                f"a file of {size} bytes; it is truncated: download it again",
                name,
            )
        if entry.offset != end:
            kind = "an overlap with the one before" if entry.offset < end else "a gap before it"
            raise _error(path, f"data at byte {end}", f"byte {entry.offset}, {kind}", name)
        end = stop
    if end != size:
        raise _error(path, f"the data to end at byte {end}", f"a file of {size} bytes")
