"""Strings of GGUF arrays: found in runs, equal to a walk from length to length."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvt.packed_texts import PackedTexts
from pyvt.weights.gguf_strings import find_strings, first_bad, pack_strings

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "\0", "\0" * 7, "\1" + "\0" * 9, "a" * 255, "b" * 256, "é" * 300]),
)


def stored(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def read(data: bytes, count: int, position: int = 0) -> PackedTexts:
    ends, num_whole = find_strings(memoryview(data), position, count)
    assert num_whole == count
    return pack_strings(memoryview(data), position, ends)


@given(st.lists(TEXTS, max_size=40), st.binary(max_size=20), st.binary(max_size=20))
def test_strings_are_those_that_were_stored(texts: list[str], before: bytes, after: bytes) -> None:
    data = before + stored([text.encode() for text in texts]) + after
    found = read(data, len(texts), len(before))
    assert [*found] == texts
    assert first_bad(found) is None


def test_strings_beyond_a_window_are_found() -> None:
    texts = [f"text {i}" * (i % 7) for i in range(120_000)]
    texts[60_000] = "long" * 600_000
    found = read(stored([text.encode() for text in texts]), len(texts))
    assert found == texts
    assert found[60_001:60_003] == texts[60_001:60_003]
    assert found[-1] == texts[-1]


@given(st.lists(TEXTS, min_size=1, max_size=6), st.data())
def test_strings_that_are_cut_off_are_not_counted(texts: list[str], data: st.DataObject) -> None:
    parts = [stored([text.encode()]) for text in texts]
    whole = b"".join(parts)
    size = data.draw(st.integers(0, len(whole) - 1))
    ends, num_whole = find_strings(memoryview(whole[:size]), 0, len(texts))
    inside = [sum(map(len, parts[: i + 1])) <= size for i in range(len(parts))]
    assert num_whole == sum(inside)
    assert all(end <= size for end in ends[:num_whole])


@pytest.mark.parametrize("length", [2**63, 2**64 - 1])
def test_absurd_length_is_the_end(length: int) -> None:
    data = stored([b"one"]) + struct.pack("<Q", length) + b"more"
    assert find_strings(memoryview(data), 0, 3)[1] == 1


@pytest.mark.parametrize(
    ("texts", "index"),
    [([b"a", b"\xc3", b"\xa9"], 1), ([b"\xff"], 0), ([b"", b"ok", b"\xa9"], 2), ([b"\xe2\x82"], 0)],
)
def test_text_that_is_no_utf8_is_found(texts: list[bytes], index: int) -> None:
    bad = first_bad(read(stored(texts), len(texts)))
    assert bad is not None
    assert bad[0] == index


def test_packed_texts_are_a_sequence() -> None:
    texts = PackedTexts(["a", "", "é\ud800", "€"])
    assert texts == ["a", "", "é\ud800", "€"]
    assert texts != ["a"]
    assert texts == PackedTexts([*texts])
    assert [texts[-1], texts.get(3), texts.get(4), texts.get(-1)] == ["€", "€", None, None]
    assert "é\ud800" in texts
    with pytest.raises(IndexError):
        texts[4]
