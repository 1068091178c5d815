"""HostArena: host memory for large constant arrays, on huge pages where the system has them.

Weights are streamed from end to end for every token. On pages of 4 KiB the address look-ups alone
cost a fifth to a third of the memory's speed, and a matrix by itself is often too small or lies too
badly for huge pages, so buffers are cut side by side from large blocks.
"""

import mmap
import threading
import weakref
from typing import Any

import numpy as np

from pyvt.errors import ConfigError
from pyvt.mathutil import round_up

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_ALIGNMENT = 64
_HUGE_PAGE_BYTES = 2 << 20
# Of address space: the system gives pages when they are first written.
_BLOCK_BYTES = 64 << 20


class HostArena:
    """Cuts buffers from blocks; a block lives as long as any of its buffers, not as the arena.

    Models may be loaded side by side, each by a thread of its own.
    """

    __slots__ = ("_lock", "_next", "_pages", "_reserved", "_stop")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pages: weakref.ref[mmap.mmap] | None = None
        self._reserved: mmap.mmap | None = None
        self._next = self._stop = 0

    def reserve(self, num_bytes: int, num_taken: int) -> None:
        """Begin a block for so many bytes and have the system give its first pages now.

        It takes a fifth of the time of filling them: for a thread that has nothing else to do.
        ``release_rest`` ends it.
        """
        with self._lock:  # nobody has a buffer of these pages yet
            self._reserved = self._new_block(num_bytes)
            taken = np.frombuffer(self._reserved, np.uint8)[self._next :][:num_taken]
            taken[:: mmap.PAGESIZE] = 0

    def take(self, num_bytes: int) -> Bytes:
        """Return a new buffer of undefined content, 64-byte aligned."""
        with self._lock:
            pages = None if self._pages is None else self._pages()
            if pages is None or self._next + num_bytes > self._stop:
                pages = self._new_block(num_bytes)
            start = self._next
            self._next += round_up(num_bytes, _ALIGNMENT)
        return np.frombuffer(pages, np.uint8)[start : start + num_bytes]

    def release_rest(self) -> None:
        """Give back what no buffer has of the last block; the next one begins another."""
        with self._lock:
            pages = None if self._pages is None else self._pages()
            if pages is not None and hasattr(mmap, "MADV_NOHUGEPAGE"):
                address = np.frombuffer(pages, np.uint8).ctypes.data
                start = round_up(address + self._next, mmap.PAGESIZE) - address
                if start < self._stop:
                    # Apart from huge pages, or the system would join them again.
                    pages.madvise(mmap.MADV_NOHUGEPAGE, start, self._stop - start)
                    pages.madvise(mmap.MADV_DONTNEED, start, self._stop - start)
            self._pages = self._reserved = None

    def _new_block(self, num_bytes: int) -> mmap.mmap:
        self.release_rest()
        size = round_up(max(num_bytes, _BLOCK_BYTES), _HUGE_PAGE_BYTES) + _HUGE_PAGE_BYTES
        try:
            pages = _anonymous_pages(size)
        except OSError as error:
            raise ConfigError(
                f"[memory] weights: expected {size >> 20} MiB more, got none from the system "
                f"({error}); take a smaller model or lower num_blocks or max_model_len",
                field="model",
            ) from error
        address = np.frombuffer(pages, np.uint8).ctypes.data
        self._pages = weakref.ref(pages)
        self._next, self._stop = -address % _HUGE_PAGE_BYTES, size
        return pages


def _anonymous_pages(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
