"""The incremental detokenizer: every split gives the one-shot text, and nothing raises."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt.testing.text_corpus import corpus
from pyvt.testing.tiny_spm import tiny_spm_metadata
from pyvt.tokenizer import IncrementalDetokenizer, Tokenizer, gguf_tokenizer
from pyvt.tokenizer.vocabulary import BYTE_OF_CHAR

EMOJI = "😀".encode()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
TEXTS = ("😀 é 漢字 👩‍👩‍👧 ď", "ကျွန်ုပ်တို့ မြန်မာစာ", "naïve — “quotes” 🇫🇷", "a\r\n\tb\u2028c")


def bytes_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids 0 to 255 are the bytes, 256 is special and 257 is not."""
    chars = [CHAR_OF_BYTE[byte] for byte in range(256)]
    return gguf_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": [*chars, "<|im_end|>", "<think>"],
            "tokenizer.ggml.token_type": [1] * 256 + [3, 4],
            "tokenizer.ggml.merges": [],
        }
    )


BYTES = bytes_tokenizer()
SPM = gguf_tokenizer(tiny_spm_metadata())


def pieces(tokenizer: Tokenizer, ids: Sequence[int], **settings: Any) -> list[str]:
    """Return what each push gives, and the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer, **settings)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(st.lists(st.binary(min_size=1, max_size=6), max_size=8))
def test_any_bytes_in_any_split_equal_one_shot(chunks: list[bytes]) -> None:
    """Every token is one byte, so this is every split; the rule for U+FFFD is Python's."""
    data = b"".join(chunks)

    got = pieces(BYTES, list(data))

    assert "".join(got) == data.decode("utf-8", "replace") == BYTES.decode(data)


@given(st.text(max_size=20))
def test_text_comes_out_whole_and_as_soon_as_it_is_complete(text: str) -> None:
    data = text.encode("utf-8", "replace")

    got = pieces(BYTES, list(data))

    assert "".join(got) == data.decode()
    assert all(piece == "" or len(piece) == 1 for piece in got)
    assert got[-1] == ""


@given(st.lists(st.integers(0, 260), max_size=30), st.booleans())
def test_special_tokens_in_between_equal_one_shot(ids: list[int], skip: bool) -> None:
    got = pieces(BYTES, ids, skip_special_tokens=skip)

    assert "".join(got) == BYTES.decode(ids, skip_special_tokens=skip)


@given(st.lists(st.integers(0, SPM.vocab_size), max_size=20), st.booleans())
def test_spm_random_ids_equal_one_shot(ids: list[int], skip: bool) -> None:
    got = pieces(SPM, ids, skip_special_tokens=skip)

    assert "".join(got) == SPM.decode(ids, skip_special_tokens=skip)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_qwen3_random_ids_equal_one_shot(qwen3: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, qwen3.vocab_size + 300), max_size=12))

    assert "".join(pieces(qwen3, ids)) == qwen3.decode(ids)


def test_every_id_of_smollm2_equals_its_bytes(smollm2: Tokenizer) -> None:
    for token_id in range(smollm2.vocab_size):
        got = "".join(pieces(smollm2, [token_id], skip_special_tokens=False))

        assert got == smollm2.token_text(token_id)
        assert got == smollm2.token_bytes(token_id).decode("utf-8", "replace")


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_of_whole_text_holds_a_replacement(qwen3: Tokenizer, text: str) -> None:
    got = pieces(qwen3, qwen3.encode(text))

    assert "".join(got) == text
    assert not any("\ufffd" in piece for piece in got)


def test_round_trip_of_the_corpus(qwen3: Tokenizer) -> None:
    """Qwen normalises to NFC; texts that are NFC already come back unchanged."""
    texts = [text for text in corpus(1500, seed=11) if unicodedata.is_normalized("NFC", text)]

    assert len(texts) > 1200
    for text in texts:
        assert "".join(pieces(qwen3, qwen3.encode(text), skip_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param(EMOJI[:2] + b" a", ["", "", "\ufffd ", "a", ""], id="cut by a space"),
        pytest.param(EMOJI + b" a", ["", "", "", "😀", " ", "a", ""], id="whole, then a space"),
        pytest.param(EMOJI[:3], ["", "", "", "\ufffd"], id="cut by the end"),
        pytest.param(b"\xff\xfe", ["\ufffd", "\ufffd", ""], id="never valid"),
        pytest.param(b"\xe0\x80", ["", "\ufffd\ufffd", ""], id="overlong"),
        pytest.param(b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd", ""], id="surrogate"),
        pytest.param(EMOJI[:2] + EMOJI, ["", "", "\ufffd", "", "", "😀", ""], id="cut by another"),
    ],
)
def test_invalid_bytes_give_one_replacement_for_each_maximal_part(
    data: bytes, want: list[str]
) -> None:
    assert pieces(BYTES, list(data)) == want


def test_special_token_inside_a_character_does_not_break_it() -> None:
    ids = [*EMOJI[:2], 256, *EMOJI[2:]]

    assert "".join(pieces(BYTES, ids)) == "😀"
    assert "".join(pieces(BYTES, ids, skip_special_tokens=False)) == "\ufffd<|im_end|>\ufffd\ufffd"


def test_special_token_is_hidden_and_other_added_ones_are_printed() -> None:
    """A role marker never shows in the text."""
    assert pieces(BYTES, [97, 256, 257]) == ["a", "", "<think>", ""]


def test_spm_drops_the_first_space_only() -> None:
    ids = SPM.encode("a  b", add_special_tokens=False)

    assert "".join(pieces(SPM, ids)) == SPM.decode(ids) == "a  b"
    assert "".join(pieces(SPM, [1, *ids], skip_special_tokens=False)) == "<s> a  b"


def test_spm_space_that_comes_late_is_still_the_first() -> None:
    space = SPM.encode("a", add_special_tokens=False)[0]

    assert pieces(SPM, [1, space, space]) == ["", "a", " a", ""]
