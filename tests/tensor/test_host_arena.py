"""Buffers of an arena: aligned, apart, and freed with their block."""

import errno
import gc
import mmap
import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from pyvt.errors import ConfigError
from pyvt.mathutil import round_up
from pyvt.tensor import host_arena
from pyvt.tensor.host_arena import HostArena


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 4 << 20, (65 << 20) + 3])
def test_buffer_is_aligned_and_writable(num_bytes: int) -> None:
    buffer = HostArena().take(num_bytes)

    buffer[-1:] = 7
    assert buffer.shape == (num_bytes,)
    assert buffer.ctypes.data % 64 == 0


def test_buffers_follow_each_other_and_do_not_overlap() -> None:
    arena = HostArena()
    buffers = [arena.take(n) for n in (100, 30 << 20, 1, 40 << 20, 64)]

    for value, buffer in enumerate(buffers):
        buffer[[0, -1]] = value

    assert [int(buffer[-1]) for buffer in buffers] == [0, 1, 2, 3, 4]
    assert buffers[1].ctypes.data - buffers[0].ctypes.data == 128
    assert not any(np.may_share_memory(a, b) for i, a in enumerate(buffers) for b in buffers[:i])


def test_block_is_freed_with_its_last_buffer() -> None:
    arena = HostArena()
    first, second = arena.take(10), arena.take(10)
    assert arena._pages is not None
    pages: weakref.ref[object] = arena._pages

    del first
    gc.collect()
    assert pages() is not None
    second[...] = 1
    del second
    gc.collect()

    assert pages() is None
    assert arena.take(10).shape == (10,)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads what Linux tells of pages")
def test_rest_of_the_last_huge_page_is_given_back_and_the_buffers_stay() -> None:
    arena = HostArena()
    buffer = arena.take((5 << 20) + 100)
    buffer[...] = 3
    end = round_up(buffer.ctypes.data + buffer.nbytes, mmap.PAGESIZE)

    arena.release_rest()

    assert (buffer == 3).all()
    assert _resident_bytes(end - 1) >= 5 << 20
    assert _resident_bytes(end) == 0
    assert not np.may_share_memory(arena.take(64), buffer)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads what Linux tells of pages")
def test_reserved_pages_are_there_for_the_next_buffers_and_the_rest_is_given_back() -> None:
    arena = HostArena()

    arena.reserve(90 << 20, 70 << 20)
    buffer = arena.take(8 << 20)

    assert 70 << 20 <= _resident_bytes(buffer.ctypes.data) <= 74 << 20
    end = round_up(buffer.ctypes.data + buffer.nbytes, mmap.PAGESIZE)
    buffer[...] = 3
    arena.release_rest()
    assert (buffer == 3).all()
    assert _resident_bytes(end - 1) <= 10 << 20
    assert _resident_bytes(end) == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads what Linux tells of pages")
def test_no_more_pages_are_taken_than_were_asked_for() -> None:
    arena = HostArena()

    arena.reserve(90 << 20, 3 << 20)

    # The first buffer is larger than what was taken, and lies in the same block.
    assert 3 << 20 <= _resident_bytes(arena.take(80 << 20).ctypes.data) <= 6 << 20


def test_reserved_pages_that_nobody_takes_are_freed() -> None:
    arena = HostArena()
    arena.reserve(1 << 20, 1 << 20)
    assert arena._pages is not None
    pages: weakref.ref[object] = arena._pages
    gc.collect()
    assert pages() is not None

    arena.release_rest()
    gc.collect()

    assert pages() is None


def _resident_bytes(address: int) -> int:
    """Return the resident bytes of the mapping that holds an address."""
    is_found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_found = int(match[1], 16) <= address < int(match[2], 16)
        elif is_found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the address is mapped")


def test_memory_that_the_system_does_not_give_is_an_error_with_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(host_arena.mmap, "mmap", refuse)

    with pytest.raises(ConfigError, match="expected 102 MiB more, got none from the system"):
        HostArena().take(100 << 20)
