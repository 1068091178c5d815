"""BufferPool: arrays whose memory is used again once nothing refers to it any more.

The activations of a step are many and short-lived. Given out from a few buffers, they stay in the
caches of a processor, and a recorded step keeps as much memory as one layer needs, not as all do.
"""

import ctypes
import math
import weakref
from bisect import bisect_left, insort
from typing import Any

import numpy as np

from pyvt.mathutil import round_up

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64
# From here on sizes are powers of two, so that arrays of batches of any size share few buffers; the
# system gives pages when they are first written.
_LARGE_BYTES = 64 << 10
# A free buffer is taken for an array of at least this share of its size.
_LEAST_SHARE = 0.5


class BufferPool:
    """Gives out arrays of undefined content to one thread; any may let go of them.

    Memory comes back when the last view of an array is gone, and is never given to the system while
    the pool lives.
    """

    __slots__ = ("__weakref__", "_buffers", "_free")

    def __init__(self) -> None:
        self._buffers: list[Array] = []
        self._free: list[tuple[int, int]] = []  # (bytes, index of the buffer), sorted

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array, 64-byte aligned."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        num_bytes = max(_ALIGNMENT, round_up(size, _ALIGNMENT))
        if num_bytes > _LARGE_BYTES:
            num_bytes = 1 << (num_bytes - 1).bit_length()
        index = self._take(num_bytes)
        # The lease is what all views of the array keep alive.
        lease = (ctypes.c_char * num_bytes).from_buffer(self._buffers[index].data)
        back = weakref.finalize(lease, _give_back, weakref.ref(self), index)
        back.atexit = False
        array: Array = np.frombuffer(memoryview(lease), np.uint8)[:size].view(kind).reshape(shape)
        return array

    def empty_if_large(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array of this pool, or of the system where that is quicker."""
        if math.prod(shape) * np.dtype(dtype).itemsize <= _LARGE_BYTES:
            return np.empty(shape, dtype)
        return self.empty(shape, dtype)

    def owns(self, array: Array) -> bool:
        """Whether an array lies in memory of this pool."""
        return self._place(array) is not None

    def unclaimed(self, array: Array) -> Array:
        """Return a dense array of this pool anew, as one that does not keep its memory.

        What it holds is valid until the pool gives that memory out.
        """
        place = self._place(array)
        assert place is not None, "an array of another owner keeps its memory"
        buffer, start = place
        raw = buffer[start : start + array.nbytes]
        again: Array = raw.view(array.dtype).reshape(array.shape)
        return again

    def _place(self, array: Array) -> tuple[Array, int] | None:
        """Return the buffer that an array lies in, and its first byte there."""
        address = array.ctypes.data
        for buffer in self._buffers:
            start = address - buffer.ctypes.data
            if 0 <= start < buffer.nbytes:
                return buffer, start
        return None

    def _take(self, num_bytes: int) -> int:
        while (at := bisect_left(self._free, (num_bytes, 0))) < len(self._free):
            size, index = self._free.pop(at)
            if size >= num_bytes >= size * _LEAST_SHARE:
                return index
            insort(self._free, (size, index))
            # A smaller one was at its place: another thread gave one back in between.
            if size > num_bytes:
                break
        raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        self._buffers.append(raw[start : start + num_bytes])
        return len(self._buffers) - 1


def _give_back(pool: "weakref.ref[BufferPool]", index: int) -> None:
    alive = pool()
    if alive is not None:
        insort(alive._free, (alive._buffers[index].nbytes, index))
