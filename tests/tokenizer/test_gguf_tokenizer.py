"""Tokenizers from GGUF metadata: ids of llama.cpp and of tokenizers, and clear errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.errors import CheckpointError, UnsupportedError
from pyvt.testing.text_corpus import corpus
from pyvt.testing.tiny_spm import tiny_spm_metadata
from pyvt.tokenizer import Tokenizer, gguf_tokenizer
from pyvt.tokenizer.base import RenderedPrompt

NUM_TEXTS = 5200
Metadata = dict[str, Any]


def small_bpe(**changes: Any) -> Metadata:
    """Return the metadata of a BPE of a few letters; a change of None drops its key."""
    tokens = [*"abcde", "ab", "abc", "<s>", "</s>", "<think>", "Ġ", "<|im_end|>"]
    metadata = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": [1, 1, 1, 1, 1, 1, 1, 3, 3, 4, 1, 3],
        "merges": ["a b", "ab c"],
        "bos_token_id": 7,
        "eos_token_id": 8,
    } | changes
    return {f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None}


def test_qwen3_vocabulary_in_gguf_form_equals_tokenizers(
    qwen3: Tokenizer, qwen3_metadata: Metadata
) -> None:
    read = gguf_tokenizer(qwen3_metadata)
    texts = list(corpus(NUM_TEXTS, seed=1))

    assert len(set(texts)) == NUM_TEXTS
    for text in texts:
        assert read.encode(text) == qwen3.encode(text), repr(text)
    assert read.eos_token_ids == (151645, 151643)
    assert read.special_ids == qwen3.special_ids
    assert set(read.control_texts) == set(qwen3.control_texts)


def test_qwen3_vocabulary_without_one_merge_differs(
    qwen3: Tokenizer, qwen3_metadata: Metadata
) -> None:
    """The comparison above can fail: one merge of 151,387 is enough."""
    merges = [m for m in qwen3_metadata["tokenizer.ggml.merges"] if m != "i n"]
    read = gguf_tokenizer(qwen3_metadata | {"tokenizer.ggml.merges": merges})

    assert len(merges) == len(qwen3_metadata["tokenizer.ggml.merges"]) - 1
    assert any(read.encode(text) != qwen3.encode(text) for text in corpus(NUM_TEXTS, seed=1))


def test_smollm2_ids_equal_llama_cpp(smollm2: Tokenizer, goldens_root: Path) -> None:
    golden = json.loads((goldens_root / "tokenizer" / "smollm2_ids.json").read_text())

    assert len(golden["texts"]) >= 300
    for text, ids in zip(golden["texts"], golden["ids"], strict=True):
        assert smollm2.encode(text, add_special_tokens=False) == ids, repr(text)


@pytest.mark.parametrize("add_space_prefix", [True, False])
def test_spm_ids_equal_llama_cpp(add_space_prefix: bool, goldens_root: Path) -> None:
    golden = json.loads((goldens_root / "tokenizer" / "spm_ids.json").read_text())
    spm = gguf_tokenizer(tiny_spm_metadata(add_space_prefix=add_space_prefix))
    wanted = golden["ids"][f"add_space_prefix={add_space_prefix}"]

    assert len(wanted) >= 100
    for text, ids in zip(golden["texts"], wanted, strict=True):
        assert spm.encode(text, add_special_tokens=False) == ids, repr(text)


def test_smollm2_facts(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.eos_token_ids == (2, 0)
    assert smollm2.bos_token_id == 1
    assert smollm2.specials["eos_token"] == "<|im_end|>"
    assert smollm2.encode("Hello") == smollm2.encode("Hello", add_special_tokens=False)


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        pytest.param({}, [7, 6], id="llama-bpe adds it when the key is absent"),
        pytest.param({"add_bos_token": False}, [6], id="told not to"),
        pytest.param({"pre": "qwen2"}, [6], id="qwen2 does not"),
        pytest.param({"pre": "qwen2", "add_bos_token": True}, [7, 6], id="told to"),
        pytest.param({"add_eos_token": True}, [7, 6, 8], id="eos too"),
        pytest.param({"bos_token_id": None}, [6], id="none to add"),
    ],
)
def test_bos_is_added_iff_the_file_says_so(changes: Metadata, ids: list[int]) -> None:
    assert gguf_tokenizer(small_bpe(**changes)).encode("abc") == ids


def test_spm_adds_bos_when_the_key_is_absent() -> None:
    assert gguf_tokenizer(tiny_spm_metadata()).encode("a")[0] == 1


def test_stop_set_is_named_ids_and_texts_of_added_tokens() -> None:
    """The text "</s>" as an ordinary piece of text ends nothing."""
    named = gguf_tokenizer(small_bpe(eot_token_id=9, eom_token_id=0))
    ordinary = gguf_tokenizer(small_bpe(token_type=[1] * 11 + [3], eos_token_id=None))

    assert named.eos_token_ids == (8, 9, 0, 11)
    assert ordinary.eos_token_ids == (11,)


def test_ignore_merges_takes_a_whole_piece_of_the_vocabulary() -> None:
    metadata = small_bpe(merges=["b c"], tokens=[*"abcde", "bc", "abc", *"fghij"])

    assert gguf_tokenizer(metadata).encode("abc", add_special_tokens=False) == [6]
    assert gguf_tokenizer(metadata | {"tokenizer.ggml.pre": "qwen2"}).encode("abc") == [0, 5]


@pytest.mark.parametrize(
    ("merges", "text", "ids"),
    [
        pytest.param(["c d"], "cd", [2, 3], id="the whole is no token: spelled out"),
        pytest.param(["b c", "a bc"], "abc", [6], id="no token, on the way to one"),
        pytest.param(["c d", "a b"], "abcd", [5, 2, 3], id="beside a token"),
        pytest.param(["b c", "a b"], "abc", [0, 1, 2], id="a better merge takes a token's part"),
        pytest.param(["a b", "a x", "x y"], "abe", [5, 4], id="halves that are no tokens"),
        pytest.param(["a b", "abc", "c "], "abc", [5, 2], id="lines without two halves"),
    ],
)
def test_merges_whose_texts_are_no_tokens_join_as_in_llama_cpp(
    merges: list[str], text: str, ids: list[int]
) -> None:
    """llama.cpp ranks all pairs of the file and spells what it finds no token for."""
    tokenizer = gguf_tokenizer(small_bpe(merges=merges, pre="qwen2"))

    assert tokenizer.encode(text, add_special_tokens=False) == ids
    guarded = RenderedPrompt(f"<s>{text}", f"<s>{text[:-1]}\ue000", {"\ue000": text[-1]})
    for rendered in (RenderedPrompt(guarded.text, guarded.text), guarded):
        assert tokenizer.encode_rendered(rendered) == [7, *ids]


def test_qwen_normalises_and_smollm_does_not() -> None:
    parts = {"tokens": ["Ã", "©", "Ì", "ģ", "e", *"abcdfgh"], "token_type": [1] * 12, "merges": []}
    qwen2 = gguf_tokenizer(small_bpe(pre="qwen2", **parts))
    smollm = gguf_tokenizer(small_bpe(pre="smollm", **parts))

    assert qwen2.encode("e\u0301") == [0, 1]
    assert smollm.encode("e\u0301") == [4, 2, 3]


def test_rows_that_the_file_calls_unused_stand_for_no_token() -> None:
    types = [1, 1, 5, 1, 1, 1, 1, 3, 3, 4, 5, 3]

    assert gguf_tokenizer(small_bpe(token_type=types)).unused_ids == {2, 10}
    assert gguf_tokenizer(small_bpe()).unused_ids == frozenset()


def test_any_integer_type_of_token_type_will_do() -> None:
    types = np.array([1, 1, 1, 1, 1, 1, 1, 3, 3, 4, 1, 3])

    for dtype in ("u1", "i4", "u8"):
        tokenizer = gguf_tokenizer(small_bpe(token_type=types.astype(dtype)))

        assert tokenizer.special_ids == {7, 8, 11}


def _spm(**changes: Any) -> Metadata:
    changed = {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    return {k: v for k, v in (tiny_spm_metadata() | changed).items() if v is not None}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        pytest.param({}, r"ggml\.model: expected a string, got nothing", id="no model"),
        pytest.param(small_bpe(model=1), r"ggml\.model: expected a string, got int", id="model"),
        pytest.param(
            small_bpe(pre=None), r"ggml\.pre: expected a string, got nothing", id="no pre"
        ),
        pytest.param(small_bpe(tokens=None), r"ggml\.tokens: expected an array", id="no tokens"),
        pytest.param(small_bpe(tokens="abc"), r"ggml\.tokens: expected an array", id="text"),
        pytest.param(
            small_bpe(tokens=["a", 1]), r"ggml\.tokens: .* got int at index 1", id="token type"
        ),
        pytest.param(small_bpe(merges=None), r"ggml\.merges: .* got nothing", id="no merges"),
        pytest.param(
            small_bpe(token_type=None), r"ggml\.token_type: .* got nothing", id="no types"
        ),
        pytest.param(
            small_bpe(token_type=[1.0] * 12),
            r"ggml\.token_type: expected an array of integers, got an array of float64",
            id="types are floats",
        ),
        pytest.param(
            small_bpe(token_type=[1] * 11),
            r"ggml\.token_type: expected one value for each of 12 tokens, got 11",
            id="types are short",
        ),
        pytest.param(
            small_bpe(eos_token_id=12), r"ggml\.eos_token_id: expected an id below 12", id="id"
        ),
        pytest.param(
            small_bpe(bos_token_id="7"), r"ggml\.bos_token_id: expected an integer", id="id text"
        ),
        pytest.param(
            small_bpe(bos_token_id=True), r"ggml\.bos_token_id: expected an integer", id="id bool"
        ),
        pytest.param(
            small_bpe(add_bos_token=1), r"ggml\.add_bos_token: expected a boolean", id="flag"
        ),
        pytest.param(
            small_bpe(bos_token_id=None, add_bos_token=True),
            r"ggml\.bos_token_id: expected an id, as add_bos_token is true",
            id="no id to add",
        ),
        pytest.param(_spm(scores=None), r"ggml\.scores: .* got nothing", id="no scores"),
        pytest.param(_spm(scores=[0.0]), r"ggml\.scores: .* got 1 values", id="scores are short"),
        pytest.param(
            _spm(scores=np.full(337, np.nan, "f4")), r"ggml\.scores: expected finite", id="NaN"
        ),
        pytest.param(
            _spm(scores=np.zeros(337, "i4")),
            r"ggml\.scores: expected an array of floats",
            id="ints",
        ),
    ],
)
def test_bad_metadata_names_the_key(metadata: Metadata, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"\[gguf tokenizer\] tokenizer\.{message}"):
        gguf_tokenizer(metadata)


def test_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"got 'bert'; .*gpt2, llama"):
        gguf_tokenizer(small_bpe(model="bert"))


def test_unknown_pre_tokenizer_lists_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedError, match=r"did you mean 'qwen2'.* llama-bpe, qwen2, qwen35, smollm"
    ):
        gguf_tokenizer(small_bpe(pre="qwen"))
