"""Tokenizers from tokenizer.json, judged by the ``tokenizers`` package itself."""

import json
import random
from typing import Any, cast

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pyvt.errors import CheckpointError, RequestError, UnsupportedError
from pyvt.testing.text_corpus import corpus
from pyvt.tokenizer import RenderedPrompt, Tokenizer, hf_tokenizer


def small_json(**parts: Any) -> str:
    """Return a byte-level BPE of 256 bytes and two added tokens; ``parts`` replace its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    return json.dumps(json.loads(tokenizer.to_str()) | parts)


def llama2_json(prepend_scheme: str) -> str:
    """Return a BPE in SentencePiece's manner: ▁ for spaces, bytes for what is unknown."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *"▁abcde<>s/", "▁a"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return str(tokenizer.to_str())


def test_encode_corpus_equals_tokenizers(qwen3: Tokenizer, qwen3_json: str) -> None:
    oracle = tokenizers.Tokenizer.from_str(qwen3_json)
    texts = list(corpus(1000, seed=3))

    assert [qwen3.encode(text) for text in texts] == [oracle.encode(text).ids for text in texts]


def test_decode_random_ids_equals_tokenizers(qwen3: Tokenizer, qwen3_json: str) -> None:
    """Parts of characters in any order."""
    oracle = tokenizers.Tokenizer.from_str(qwen3_json)
    rng = random.Random(5)
    rows = [[rng.randrange(qwen3.vocab_size) for _ in range(3)] for _ in range(5000)]

    for skip in (True, False):
        got = [qwen3.decode(row, skip_special_tokens=skip) for row in rows]

        assert got == oracle.decode_batch(rows, skip_special_tokens=skip)


def test_specials_come_from_config_as_text_or_object(qwen3: Tokenizer) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "tokenizer_class": "NoSuchTokenizer",
    }

    small = hf_tokenizer(small_json(), config)

    assert small.specials == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (small.bos_token_id, small.eos_token_ids) == (256, (257,))
    assert qwen3.specials == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert (qwen3.bos_token_id, qwen3.eos_token_ids) == (None, (151645,))
    assert qwen3.vocab_size == 151669


def test_special_ids_are_only_the_special_added_tokens(qwen3: Tokenizer) -> None:
    assert qwen3.special_ids == frozenset(range(151643, 151657))
    assert len(qwen3.control_texts) == 26
    assert qwen3.decode([151667, 151645, 72]) == "<think>i"


def test_bos_is_added_by_the_post_processor_only_when_asked() -> None:
    """A completion begins with BOS, a rendered chat with the template's own."""
    llama2 = hf_tokenizer(llama2_json("first"), {"bos_token": "<s>", "eos_token": "</s>"})
    rendered = RenderedPrompt("<s>a", "<s>a")

    assert llama2.encode("a") == [1, 269]
    assert llama2.encode("a", add_special_tokens=False) == [269]
    assert llama2.encode_rendered(rendered)[:2] == [1, 260]
    assert llama2.encode_rendered(rendered).count(1) == 1


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_encode_rendered_guarded_text_keeps_metaspace_of_one_piece(scheme: str) -> None:
    """A run inside the text gets a dummy space exactly where the one-piece text has it."""
    llama2 = hf_tokenizer(llama2_json(scheme), None)
    plain = "a<s>b a</s>c de"
    guarded = RenderedPrompt.from_guarded("a<s>b a</s>c \ufdd0e", {"\ufdd0": "d"})

    assert llama2.encode_rendered(guarded) == llama2.encode(plain, add_special_tokens=False)


def test_decode_spaced_tokens_equals_tokenizers() -> None:
    text = llama2_json("always")
    llama2, oracle = hf_tokenizer(text, None), tokenizers.Tokenizer.from_str(text)
    ids = oracle.encode("a  bé😀a").ids

    assert llama2.strips_first_space
    assert llama2.decode(ids) == oracle.decode(ids) == "a  bé😀a"
    assert llama2.decode(ids, skip_special_tokens=False) == oracle.decode(
        ids, skip_special_tokens=False
    )


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    limits = {
        "truncation": {
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
        },
    }  # fmt: skip

    assert len(hf_tokenizer(small_json(**limits), None).encode("abcd")) == 4


def test_padding_rows_decode_to_nothing(qwen3: Tokenizer) -> None:
    assert qwen3.token_bytes(151_800) == b""
    assert qwen3.decode([72, 151_800, 72]) == "ii"


def test_tokens_of_whitespace_are_no_control_tokens() -> None:
    """A rendered text in which such a token is the caller's gives the id of the raw text."""
    added = json.loads(small_json())["added_tokens"]
    spaces = {**added[-1], "id": 259, "content": "   "}
    small = hf_tokenizer(small_json(added_tokens=[*added, spaces]), None)
    guarded = RenderedPrompt.from_guarded("a   \ufdd0think>", {"\ufdd0": "<"})

    ids = small.encode_rendered(guarded)

    assert small.control_texts == ("<s>", "</s>", "<think>")
    assert ids[1] == 259
    assert small.decode(ids) == "a   <think>"
    assert 258 not in ids


def test_encode_lone_surrogate_is_a_request_error(qwen3: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"\[tokenizer\] prompt: expected Unicode text"):
        qwen3.encode("a\ud83d")


def test_encode_of_no_text_is_a_request_error(qwen3: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"\[tokenizer\] prompt: expected a string, got int"):
        qwen3.encode(cast(Any, 5))


def test_bad_file_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected a file of"):
        hf_tokenizer("{}", None)


def test_eos_that_is_no_token_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="eos_token: expected a token"):
        hf_tokenizer(small_json(), {"eos_token": "<eos>"})


def test_special_token_of_a_wrong_type_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="eos_token: expected a string or an object"):
        hf_tokenizer(small_json(), {"eos_token": 7})


def test_unknown_decoder_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match=r"decoder: expected one of \(ByteLevel;"):
        hf_tokenizer(
            small_json(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), None
        )


def test_normalised_control_token_is_found_by_the_splitter() -> None:
    added = json.loads(small_json())["added_tokens"]
    folded = {**added[-1], "id": 259, "content": "<end>", "normalized": True}
    text = small_json(
        added_tokens=[*added, folded],
        normalizer=json.loads(normalizers.Lowercase().__getstate__()),
    )
    small = hf_tokenizer(text, None)
    guarded = RenderedPrompt.from_guarded("x<END>\ufdd0", {"\ufdd0": "<"})

    assert small.encode_rendered(guarded) == small.encode("x<END><")
    assert 259 in small.encode_rendered(guarded)
