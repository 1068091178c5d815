"""GGUF: a reader of header, metadata and tensor table that trusts no byte of the file.

Format, little-endian throughout:

1. ``GGUF``, u32 version (2 or 3), u64 number of tensors, u64 number of metadata pairs.
2. A metadata pair: string key, u32 type, value. A string is a u64 length and UTF-8. Types: 0 u8,
   1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool (one byte), 8 string, 9 array (u32 element type,
   u64 count, elements), 10 u64, 11 i64, 12 f64.
3. A tensor: string name, u32 number of dims, u64 dims (fastest axis first), u32 element type, u64
   offset.
4. The data, from the next multiple of ``general.alignment`` (default 32). Offsets count from there,
   are multiples of it, and tensors do not overlap.

Every count is held against the bytes that are left before anything is made for it, and all of 1 to
3 against the ``MAX_`` limits below, so that no file makes the reader allocate much more than it
holds.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.mathutil import round_up
from pyvt.packed_texts import PackedTexts
from pyvt.tensor.dtype import DTYPES, DType, dtype_from_gguf
from pyvt.weights.gguf_strings import LENGTH_BYTES, find_strings, first_bad, pack_strings
from pyvt.weights.mapped_file import MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_RANK = 4
MAX_HEADER_BYTES = 32 << 20
MAX_NUMBERS = 1 << 21
MAX_STRINGS = 3 << 18
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 15
MAX_NAME_BYTES = 1024
MAX_ELEMENTS = 1 << 48

_BOOL, _STRING, _ARRAY = 7, 8, 9
SCALARS: "dict[int, np.dtype[Any]]" = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# Element types of GGUF that pyvt does not read.
UNREAD_TYPES = {
    9: "q8_1",
    15: "q8_k",
    19: "iq1_s",
    29: "iq1_m",
    34: "tq1_0",
    35: "tq2_0",
    41: "q1_0",
}
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MIN_STRING_BYTES = LENGTH_BYTES
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table: row-major ``shape``, ``offset`` from the start of the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """One open file. Arrays of the metadata are lists of int, float or bool, or PackedTexts.

    ``spans`` says where each pair of the metadata lies in the file, key included.
    """

    mapped: MappedFile
    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    spans: dict[str, tuple[int, int]]

    @property
    def path(self) -> Path:
        """The file."""
        return self.mapped.path


def read_gguf(path: Path) -> GGUFFile:
    """Map a file and check its metadata and whole tensor table.

    Raises CheckpointError naming file and tensor, UnsupportedError for an element type that pyvt
    does not read.
    """
    mapped = MappedFile(path)
    cursor = _Cursor(mapped)
    version = _read_version(cursor)
    num_tensors = cursor.count("tensors", _U64, _MIN_TENSOR_BYTES, MAX_TENSORS)
    num_pairs = cursor.count("metadata pairs", _U64, _MIN_PAIR_BYTES, MAX_PAIRS)
    metadata: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(num_pairs):
        start = cursor.position
        key = cursor.string("a metadata key", MAX_NAME_BYTES, 1)
        if key in metadata:
            cursor.fail("each metadata key once", f"{key!r} twice")
        metadata[key] = _read_value(cursor, key)
        spans[key] = (start, cursor.position)
    alignment = _check_alignment(cursor, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    rows: dict[str, tuple[DType, tuple[int, ...], int, int]] = {}
    for _ in range(num_tensors):
        name = cursor.string("a tensor name", MAX_NAME_BYTES, 1)
        if name in rows:
            cursor.fail("one tensor of each name", "the same name twice", name)
        rows[name] = _read_tensor(cursor, name, alignment)
    data_start = round_up(cursor.position, alignment)
    tensors = {
        name: GGUFTensor(name, dtype, shape, data_start + offset, nbytes)
        for name, (dtype, shape, offset, nbytes) in rows.items()
    }
    _check_extents(cursor, tensors)
    return GGUFFile(mapped, version, alignment, metadata, tensors, spans)


class _Cursor:
    """A position in the header; every step forward is checked against its end."""

    __slots__ = ("buffer", "end", "num_numbers", "num_strings", "path", "position", "size")

    def __init__(self, mapped: MappedFile) -> None:
        self.path = mapped.path
        self.size = mapped.size
        self.buffer = mapped.buffer(0, MAX_HEADER_BYTES)
        self.end = len(self.buffer)
        self.position = 0
        self.num_numbers = 0
        self.num_strings = 0

    def fail(self, expected: str, got: str, tensor: str | None = None) -> NoReturn:
        subject = "" if tensor is None else f"tensor {tensor[:200]!r} "
        raise CheckpointError(
            f"[gguf] {str(self.path)!r}: {subject}expected {expected}, got {got}",
            path=self.path,
            tensor=tensor,
        )

    def take(self, what: str, nbytes: int, tensor: str | None = None) -> int:
        """Return the position of the next ``nbytes`` and step over them."""
        start = self.position
        if nbytes > self.end - start:
            got = f"{self.end - start} that are left of {self.size}; the file is truncated"
            if self.end < self.size:
                got = f"the end of the {self.end} bytes that a header may have"
            self.fail(f"{nbytes} bytes of {what} at byte {start}", got, tensor)
        self.position = start + nbytes
        return start

    def number(self, what: str, form: struct.Struct, tensor: str | None = None) -> int:
        value: int = form.unpack_from(self.buffer, self.take(what, form.size, tensor))[0]
        return value

    def count(self, what: str, form: struct.Struct, item_bytes: int, most: int) -> int:
        """Return a count of items, each of which takes at least ``item_bytes``."""
        value = self.number(f"the number of {what}", form)
        most = min(most, (self.end - self.position) // item_bytes)
        if value > most:
            self.fail(f"at most {most} {what}, by the bytes left or our limit", str(value))
        return value

    def string(self, what: str, max_bytes: int, least: int = 0) -> str:
        length = self.number(f"the length of {what}", _U64)
        if not least <= length <= max_bytes:
            self.fail(f"{least} to {max_bytes} bytes of {what}", str(length))
        start = self.take(what, length)
        return self.decode(what, start, start + length)

    def decode(self, what: str, start: int, stop: int) -> str:
        try:
            return str(self.buffer[start:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"[gguf] {str(self.path)!r}: expected UTF-8 in {what}, got {error}", path=self.path
            ) from error


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.buffer[: len(MAGIC)])
    if magic != MAGIC:
        cursor.fail(f"{MAGIC!r} as the first bytes", f"{magic!r}; it is no GGUF file")
    cursor.take("magic", len(MAGIC))
    version = cursor.number("the version", _U32)
    if version not in VERSIONS:
        big_endian = "; the file is big-endian: convert it for this machine"
        is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS)
        cursor.fail("version 2 or 3", f"{version}{big_endian if is_swapped else ''}")
    return version


def _read_value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.number(f"the type of {key!r}", _U32)
    if kind == _STRING:
        return cursor.string(f"the value of {key!r}", MAX_HEADER_BYTES)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    return _read_numbers(cursor, key, kind, 1)[0]


def _read_array(cursor: _Cursor, key: str) -> list[Any] | PackedTexts:
    kind = cursor.number(f"the element type of {key!r}", _U32)
    if kind == _ARRAY:
        cursor.fail(f"an array of numbers or strings in {key!r}", "an array of arrays")
    what = f"items of {key!r}"
    if kind == _STRING:
        most = MAX_STRINGS - cursor.num_strings
        count = cursor.count(what, _U64, _MIN_STRING_BYTES, most)
        cursor.num_strings += count
        return _read_strings(cursor, key, count)
    item_bytes = SCALARS[kind].itemsize if kind in SCALARS else 1
    count = cursor.count(what, _U64, item_bytes, MAX_NUMBERS - cursor.num_numbers)
    cursor.num_numbers += count
    return _read_numbers(cursor, key, kind, count)


def _read_numbers(cursor: _Cursor, key: str, kind: int, count: int) -> list[Any]:
    dtype = SCALARS.get(kind)
    if dtype is None:
        cursor.fail(f"a value type of 0 to 12 in {key!r}", str(kind))
    start = cursor.take(f"the value of {key!r}", count * dtype.itemsize)
    values = np.frombuffer(cursor.buffer, dtype, count, start)
    if kind == _BOOL:
        if np.any(values > 1):
            cursor.fail(f"booleans of 0 or 1 in {key!r}", str(values.max()))
        values = values.astype(np.bool_)
    items: list[Any] = values.tolist()
    return items


def _read_strings(cursor: _Cursor, key: str, count: int) -> PackedTexts:
    """Read strings at once: a vocabulary has 150,000 of them, and as many merges."""
    start = cursor.position
    ends, num_whole = find_strings(cursor.buffer, start, count)
    if num_whole < count:
        last = int(ends[num_whole - 1]) if num_whole else start
        size = int(ends[-1]) - last if len(ends) > num_whole else cursor.end - last
        what = f"item {num_whole} of {key!r}"
        cursor.fail(f"{what} inside the {cursor.end} bytes of the header", f"{size} bytes")
    texts = pack_strings(cursor.buffer, start, ends)
    bad = first_bad(texts)
    if bad is not None:
        raise CheckpointError(
            f"[gguf] {str(cursor.path)!r}: expected UTF-8 in item {bad[0]} of {key!r}, "
            f"got {bad[1]}",
            path=cursor.path,
        ) from bad[1]
    if count:
        cursor.position = int(ends[-1])
    return texts


def _check_alignment(cursor: _Cursor, alignment: Any) -> int:
    is_power = type(alignment) is int and alignment > 0 and alignment & (alignment - 1) == 0
    if not is_power or not 8 <= alignment <= MAX_ALIGNMENT:
        cursor.fail(
            f"general.alignment a power of two from 8 to {MAX_ALIGNMENT}", repr(alignment)[:80]
        )
    return int(alignment)


def _read_tensor(
    cursor: _Cursor, name: str, alignment: int
) -> tuple[DType, tuple[int, ...], int, int]:
    rank = cursor.number("the number of dims", _U32, name)
    if rank > MAX_RANK:
        cursor.fail(f"at most {MAX_RANK} dims", str(rank), name)
    dims = [cursor.number("a dim", _U64, name) for _ in range(rank)]
    dtype = _dtype(cursor, name, cursor.number("the element type", _U32, name))
    offset = cursor.number("the offset", _U64, name)
    num_elements = 1
    for size in dims:
        num_elements *= size
    if not 0 < num_elements <= MAX_ELEMENTS:
        cursor.fail(f"dims of 1 to {MAX_ELEMENTS} elements", str(dims), name)
    row = dims[0] if dims else 1
    if row % dtype.block_size:
        cursor.fail(f"rows of a multiple of {dtype.block_size} for {dtype}", str(row), name)
    if offset % alignment:
        cursor.fail(f"an offset that is a multiple of {alignment}", str(offset), name)
    nbytes = num_elements // dtype.block_size * dtype.block_bytes
    return dtype, tuple(reversed(dims)), offset, nbytes


def _dtype(cursor: _Cursor, name: str, type_id: int) -> DType:
    dtype = dtype_from_gguf(type_id)
    if dtype is not None:
        return dtype
    readable = ", ".join(d.name for d in DTYPES.values() if d.gguf_id is not None)
    if type_id in UNREAD_TYPES:
        raise UnsupportedError(
            f"[gguf] {str(cursor.path)!r}: tensor {name!r} expected an element type of {readable}, "
            f"got {UNREAD_TYPES[type_id]}"
        )
    return cursor.fail(f"an element type of {readable}", f"type number {type_id}", name)


def _check_extents(cursor: _Cursor, tensors: dict[str, GGUFTensor]) -> None:
    end, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        stop = tensor.offset + tensor.nbytes
        if stop > cursor.size:
            cursor.fail(
                f"bytes {tensor.offset} to {stop} inside the file",
                f"a file of {cursor.size} bytes; it is truncated: download it again",
                tensor.name,
            )
        if tensor.offset < end:
            cursor.fail(f"data from byte {end}", f"an overlap with {before!r}", tensor.name)
        end, before = stop, tensor.name
