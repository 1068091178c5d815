"""Arrays of strings of a GGUF file: each a u64 of its length, then its UTF-8 bytes.

To find them one must go from length to length, 300,000 of them in a large vocabulary. Nearly all
are shorter than 256 bytes and hold no NUL, so their lengths stand out: a byte before seven zeros.
These are found all at once, and whole runs of them are taken in which each ends where the next
begins; from what is longer or holds such zeros one step is made by its length.
"""

import struct
from typing import Any

import numpy as np

from pyvt.packed_texts import PackedTexts

Positions = np.ndarray[Any, np.dtype[np.int64]]

_LENGTH = struct.Struct("<Q")
LENGTH_BYTES = _LENGTH.size
# Of the file, looked at in one go.
_WINDOW_BYTES = 1 << 20


def find_strings(buffer: memoryview, position: int, count: int) -> tuple[Positions, int]:
    """Return where the bytes of strings end, and how many of these lie inside the buffer.

    Args:
        buffer: the bytes of the file.
        position: of the first string's length.
        count: strings of the array.

    Returns:
        The ends ``[n]`` and the number of strings that are whole. It is below ``count`` where the
        buffer ends first; the end of the one that is cut is then the last, if its length is there.
    """
    data = np.frombuffer(buffer, np.uint8)
    found: list[Positions] = []
    done, window_stop = 0, position
    short = follows = breaks = np.empty(0, np.int64)
    while done < count and position + LENGTH_BYTES <= len(data):
        if position >= window_stop:
            window_stop = position + _WINDOW_BYTES
            short = position + _short_lengths(data[position : window_stop + LENGTH_BYTES - 1])
            follows = short + LENGTH_BYTES + data[short]
            breaks = np.flatnonzero(follows[:-1] != short[1:])
        first = int(np.searchsorted(short, position))
        if first < len(short) and short[first] == position:
            after = int(np.searchsorted(breaks, first))
            last = int(breaks[after]) if after < len(breaks) else len(short) - 1
            ends = follows[first : min(last + 1, first + count - done)]
        else:
            # A length of 2**63 and more is past every end, whatever it is.
            length = min(_LENGTH.unpack_from(buffer, position)[0], len(data))
            ends = np.array([position + LENGTH_BYTES + length])
        found.append(ends)
        done += len(ends)
        position = int(ends[-1])
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    return ends, done - (done > 0 and position > len(data))


def pack_strings(buffer: memoryview, position: int, ends: Positions) -> PackedTexts:
    """Return strings that ``find_strings`` found from ``position`` on, whatever their bytes are."""
    if not len(ends):
        return PackedTexts()
    region = np.frombuffer(buffer[position : int(ends[-1])], np.uint8)
    is_text = np.ones(len(region), np.bool_)
    lengths_at = np.concatenate([[0], ends[:-1] - position])
    for i in range(LENGTH_BYTES):
        is_text[lengths_at + i] = False
    blob = region[is_text].tobytes()
    sizes = ends - position - lengths_at - LENGTH_BYTES
    return PackedTexts.of_bytes(blob, np.cumsum(sizes).astype(np.uint32))


def first_bad(texts: PackedTexts) -> tuple[int, UnicodeDecodeError] | None:
    """Return the first text that is no UTF-8 and what is wrong with it."""
    if _is_utf8(texts):
        return None
    start = 0
    for i, end in enumerate(texts.ends.tolist()):
        try:
            texts.blob[start:end].decode()
        except UnicodeDecodeError as error:
            return i, error
        start = end
    raise AssertionError("each text is UTF-8, but not all together")


def _is_utf8(texts: PackedTexts) -> bool:
    """Whether every text is UTF-8: all together are, and none begins inside a character."""
    starts = texts.ends[:-1]
    firsts = np.frombuffer(texts.blob, np.uint8)[starts[starts < len(texts.blob)]]
    if np.any((firsts & 0xC0) == 0x80):
        return False
    try:
        texts.blob.decode()
    except UnicodeDecodeError:
        return False
    return True


def _short_lengths(data: np.ndarray[Any, np.dtype[np.uint8]]) -> Positions:
    """Return where a byte stands before seven zeros."""
    is_zero = data[1:] == 0
    two = is_zero[:-1] & is_zero[1:]
    four = two[:-2] & two[2:]
    return np.flatnonzero(four[:-3] & four[3:])
