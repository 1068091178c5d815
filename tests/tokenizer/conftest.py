"""Tokenizers that several tests share: Qwen3's from both kinds of file, and SmolLM2's."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.tokenizer import ChatTemplate, Tokenizer, gguf_tokenizer, hf_tokenizer
from pyvt.weights.gguf import read_gguf

Metadata = dict[str, Any]


def gguf_form(tokenizer_json: str) -> Metadata:
    """Return a tokenizer.json as a converter writes it into GGUF metadata, rows padded to 128."""
    content = json.loads(tokenizer_json)
    texts = {i: text for text, i in content["model"]["vocab"].items()}
    types = dict.fromkeys(texts, 1)
    for token in content["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    size = -(-len(texts) // 128) * 128
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [texts.get(i, f"[PAD{i}]") for i in range(size)],
        "tokenizer.ggml.token_type": [types.get(i, 5) for i in range(size)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 151643,
        "tokenizer.ggml.eos_token_id": 151645,
        "tokenizer.ggml.padding_token_id": 151643,
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.fixture(scope="session")
def qwen3_json(qwen3_tokenizer_dir: Path) -> str:
    return (qwen3_tokenizer_dir / "tokenizer.json").read_text()


@pytest.fixture(scope="session")
def qwen3_config(qwen3_tokenizer_dir: Path) -> Metadata:
    return dict(json.loads((qwen3_tokenizer_dir / "tokenizer_config.json").read_text()))


@pytest.fixture(scope="session")
def qwen3(qwen3_json: str, qwen3_config: Metadata) -> Tokenizer:
    return hf_tokenizer(qwen3_json, qwen3_config)


@pytest.fixture(scope="session")
def qwen3_template(qwen3: Tokenizer, qwen3_config: Metadata) -> ChatTemplate:
    return ChatTemplate.for_tokenizer({"default": qwen3_config["chat_template"]}, qwen3)


@pytest.fixture(scope="session")
def qwen3_metadata(qwen3_json: str) -> Metadata:
    return gguf_form(qwen3_json)


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Metadata:
    return read_gguf(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Metadata) -> Tokenizer:
    return gguf_tokenizer(smollm2_metadata)
