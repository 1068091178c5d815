"""tokenizer.json as keys of GGUF: both read alike."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.config.model import ModelConfig
from pyvt.convert.gguf_writer import Typed
from pyvt.convert.tokenizer_metadata import tokenizer_metadata
from pyvt.errors import UnsupportedError
from pyvt.tokenizer import gguf_tokenizer, hf_tokenizer
from pyvt.weights.resolve import ModelFiles, open_model
from tests.convert.tiny_source import bpe_json, write_source

TEXTS = ("hello wo 12345 abc", "Ünïcode — e\u0301 naïve", "<think>hell</think> <|endoftext|>", "")


def keys_of(files: ModelFiles) -> dict[str, Any]:
    assert files.config is not None
    keys = tokenizer_metadata(files, ModelConfig.from_hf(files.config))
    return {k: v.value if isinstance(v, Typed) else v for k, v in keys.items()}


@pytest.mark.parametrize("pre", ["qwen2", "qwen35", "llama-bpe", "smollm"])
def test_byte_level_bpe_reads_alike(tmp_path: Path, pre: str) -> None:
    content = bpe_json(pre)
    files = open_model(write_source(tmp_path, tokenizer=content))

    keys = keys_of(files)

    assert keys["tokenizer.ggml.pre"] == pre
    got, expected = gguf_tokenizer(keys), hf_tokenizer(json.dumps(content), {})
    for text in TEXTS:
        assert got.encode(text) == expected.encode(text)
    assert got.control_texts == expected.control_texts
    assert got.eos_token_ids == (264,)


def spm_json() -> dict[str, Any]:
    """Return BPE over characters with byte fallback, as Llama 2 has it."""
    chars = [*"▁abcdefghijklmnopqrstuvwxyz"]
    words = ["he", "ll", "hell", "hello", "▁a", "▁hello", "ab", "abc", "▁▁"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *chars, *words]
    merges = ["h e", "l l", "he ll", "hell o", "▁ a", "▁ hello", "a b", "ab c", "▁ ▁"]
    added = [
        {"id": i, "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for i, text in enumerate(texts[:3])
    ]
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                back,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": merges,
        },
    }


def test_bpe_with_byte_fallback_reads_alike(tmp_path: Path) -> None:
    content, config = spm_json(), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_source(tmp_path, "llama", tokenizer=content, vocab_size=300)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    keys = keys_of(open_model(tmp_path))

    assert keys["tokenizer.ggml.model"] == "llama"
    got, expected = gguf_tokenizer(keys), hf_tokenizer(json.dumps(content), config)
    for text in ("hello", "abc hello a", "  two  spaces", "ünï</s>x", "hellohellabc"):
        assert got.encode(text) == expected.encode(text), text


def test_qwen3_is_written_as_its_converter_does(tmp_path: Path, qwen3_tokenizer_dir: Path) -> None:
    content = json.loads((qwen3_tokenizer_dir / "tokenizer.json").read_text())
    narrow = {"hidden_size": 8, "intermediate_size": 8, "head_dim": 8}
    files = open_model(write_source(tmp_path, tokenizer=content, vocab_size=151936, **narrow))

    keys = keys_of(files)

    assert keys["tokenizer.ggml.pre"] == "qwen2"
    assert keys["tokenizer.ggml.tokens"][151643:151646] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert keys["tokenizer.ggml.tokens"][151668:151670] == ["</think>", "[PAD151669]"]
    assert keys["tokenizer.ggml.token_type"][151643:151670:25] == [3, 4]
    assert keys["tokenizer.ggml.token_type"][-1] == 5
    assert keys["tokenizer.ggml.merges"][0] == "Ġ Ġ"
    assert keys["tokenizer.ggml.add_bos_token"] is False


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    content = bpe_json()
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\w+"}
    files = open_model(write_source(tmp_path, tokenizer=content))

    with pytest.raises(UnsupportedError, match=r"pre-tokenizer and normalizer of one of qwen2"):
        keys_of(files)
