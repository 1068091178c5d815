"""Host memory for large constant arrays: aligned for kernels, on huge pages where they help."""

import mmap
from typing import Any

import numpy as np

_ALIGNMENT = 64
# From this size on a buffer gets pages of its own, which the system may make huge.
_MAPPED_BYTES = 4 << 20


def host_buffer(num_bytes: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return a new uint8 array of undefined content whose data is 64-byte aligned."""
    if num_bytes >= _MAPPED_BYTES and hasattr(mmap, "MAP_ANONYMOUS"):
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, np.uint8)
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes]
