"""MappedFile: a read-only memory map whose every view is checked against the file's size.

The size is taken once, when the file is opened. A file that another process cuts afterwards ends
this process with SIGBUS, as with any memory map: models are replaced by rename, never written over.
"""

import mmap
import stat
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.source import Tensor


class MappedFile:
    """One file, mapped read-only. Views keep the map alive, so ``close`` never breaks them."""

    __slots__ = ("_bytes", "_map", "path", "size")

    def __init__(self, path: Path) -> None:
        """Map ``path``. Raises CheckpointError where it is missing, unreadable or no plain file."""
        self.path = path
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(
                    f"[weights] {str(path)!r}: expected a regular file, got a folder or a device",
                    path=path,
                )
            with path.open("rb") as file:
                self.size = status.st_size
                # An empty file cannot be mapped.
                self._map = (
                    mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
                    if self.size
                    else None
                )
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"[weights] {str(path)!r}: expected a readable file, got {error}; "
                "check the path and its permissions",
                path=path,
            ) from error
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] | None = np.frombuffer(
            b"" if self._map is None else self._map, np.uint8
        )

    def buffer(self, start: int, stop: int) -> memoryview:
        """Return the bytes ``[start, stop)``, cut at the end of the file, as a read-only view."""
        return self._data()[start:stop].data

    def tensor(self, name: str, dtype: DType, shape: tuple[int, ...], offset: int) -> Tensor:
        """Return the tensor at ``offset``: a view, or a copy where it is not aligned for its type.

        Raises CheckpointError where it does not lie inside the file.
        """
        row_shape = (*shape[:-1], dtype.row_bytes(shape[-1])) if dtype.is_block else shape
        nbytes = dtype.block_bytes if not dtype.is_block else 1
        for size in row_shape:
            nbytes *= size
        if offset < 0 or offset + nbytes > self.size:
            raise CheckpointError(
                f"[weights] {str(self.path)!r}: tensor {name!r} expected bytes {offset} to "
                f"{offset + nbytes} inside the file, got a file of {self.size} bytes",
                path=self.path,
                tensor=name,
            )
        raw = self._data()[offset : offset + nbytes]
        if dtype.numpy is None:
            return QuantTensor(dtype, shape, raw.reshape(row_shape))
        if raw.ctypes.data % dtype.numpy.alignment:
            raw = raw.copy()
            raw.flags.writeable = False
        return raw.view(dtype.numpy).reshape(shape)

    def release(self) -> None:
        """Take the file's pages out of this process; a view that is touched maps them again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Drop this object's hold on the map; it goes when the last view has gone."""
        self._bytes = self._map = None

    def _data(self) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        if self._bytes is None:
            raise CheckpointError(
                f"[weights] {str(self.path)!r}: expected an open file, got one that was closed",
                path=self.path,
            )
        return self._bytes
