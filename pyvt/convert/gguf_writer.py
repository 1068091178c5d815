"""GGUF: a writer that streams tensors into a file which appears whole or not at all.

The format is in ``pyvt.weights.gguf_reader``. Sizes are known before the first byte, so the header
is written once; then each tensor's bytes in the order of the table. All of it goes to a hidden name
in the same folder, which one rename makes final; whatever ends the block early removes it.
"""

import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import OutputError
from pyvt.mathutil import round_up
from pyvt.tensor.dtype import DType

ALIGNMENT = 32
BOOL, STRING, ARRAY = 7, 8, 9
_FORMS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    BOOL: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
U32, I32, F32, U64 = 4, 5, 6, 10


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type number; that of an array is the type of its items."""

    kind: int
    value: Any


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of the tensor table: a GGUF name, an element type and a row-major shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        num_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return num_rows * self.dtype.row_bytes(self.shape[-1] if self.shape else 1)


def encoded_pair(key: str, value: Any) -> bytes:
    """Return one metadata pair as bytes.

    bool, str, float (f32) and int from 0 to 2^32 - 1 (u32) have types of their own, lists that of
    their items; others are ``Typed``.
    """
    kind, plain = _kind(value)
    head = _string(key)
    if isinstance(plain, list):
        items = [_item(kind, item) for item in plain]
        return head + struct.pack("<IIQ", ARRAY, kind, len(plain)) + b"".join(items)
    return head + struct.pack("<I", kind) + _item(kind, plain)


class GGUFWriter:
    """An open file; made by ``gguf_writer``, which ends it."""

    def __init__(self, file: Any, rows: Sequence[TableRow]) -> None:
        self._file = file
        self._rows = iter(rows)
        self._left = 0

    def begin(self) -> TableRow:
        """Start the next tensor of the table and return its row."""
        assert self._left == 0, "the tensor before has all its bytes"
        row = next(self._rows)
        self._left = row.nbytes
        return row

    def write(self, data: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
        """Add bytes to the tensor; after its last one comes the padding."""
        self._left -= data.nbytes
        assert self._left >= 0, "a tensor gets the bytes that its row says"
        self._file.write(data.data)
        if self._left == 0:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))


@contextmanager
def gguf_writer(
    path: Path, pairs: Mapping[str, bytes], rows: Sequence[TableRow]
) -> Iterator[GGUFWriter]:
    """Write a GGUF file: the block gives each tensor of ``rows`` its bytes, in order.

    Args:
        path: the final name; a file that has it is replaced.
        pairs: key → encoded pair.
        rows: the tensor table.

    Raises:
        OutputError: no room on the disk, or the file cannot be written.
    """
    header = _header(pairs, rows)
    total = len(header) + sum(round_up(row.nbytes, ALIGNMENT) for row in rows)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _check_room(path, total)
        with partial.open("wb") as file:
            file.write(header)
            yield GGUFWriter(file, rows)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(
            f"[quantize] {str(path)!r}: expected a file of {total >> 20} MiB to be written, got "
            f"{error.strerror or error}; free some space or give a path on another disk"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _check_room(path: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(path.parent).free
    if free_bytes < needed_bytes:
        raise OutputError(
            f"[quantize] {str(path)!r}: expected {needed_bytes >> 20} MiB free in "
            f"{str(path.parent)!r}, got {free_bytes >> 20} MiB; free some space or give a path on "
            "another disk"
        )


def _header(pairs: Mapping[str, bytes], rows: Sequence[TableRow]) -> bytes:
    infos, offset = [], 0
    for row in rows:
        assert row.dtype.gguf_id is not None, f"{row.name}: expected a type of GGUF"
        dims = row.shape[::-1]
        infos.append(
            _string(row.name)
            + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
            + struct.pack("<IQ", row.dtype.gguf_id, offset)
        )
        offset = round_up(offset + row.nbytes, ALIGNMENT)
    counts = struct.pack("<IQQ", 3, len(rows), len(pairs))
    header = b"GGUF" + counts + b"".join(pairs.values()) + b"".join(infos)
    return header.ljust(round_up(len(header), ALIGNMENT), b"\0")


def _kind(value: Any) -> tuple[int, Any]:
    match value:
        case Typed():
            return value.kind, value.value
        case bool():
            return BOOL, value
        case str():
            return STRING, value
        case float():
            return F32, value
        case int() if 0 <= value < 1 << 32:
            return U32, value
        case [first, *_]:
            return _kind(first)[0], list(value)
    raise AssertionError(f"a metadata value has a type of its own or is Typed, got {value!r}")


def _item(kind: int, value: Any) -> bytes:
    return _string(value) if kind == STRING else struct.pack(_FORMS[kind], value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
