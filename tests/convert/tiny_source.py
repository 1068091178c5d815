"""Tiny models with tokenizers of their own, as folders of safetensors."""

import json
from pathlib import Path
from typing import Any

from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.tokenizer.gguf import DIGITS_FIRST, PRE_TOKENIZERS
from pyvt.tokenizer.vocabulary import BYTE_OF_CHAR

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
_EXPERTS = {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256}
# Another number of value heads than of key heads, and than of value heads for each key head.
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_WORDS = ("he", "hel", "hell", "hello", "Ġw", "Ġwo", "ab", "abc")


def bpe_json(pre: str = "qwen2", **changes: Any) -> dict[str, Any]:
    """Return a tokenizer.json of bytes, a few merges, a control token and one that is printed."""
    row = PRE_TOKENIZERS[pre]
    texts = [*BYTE_OF_CHAR, *_WORDS]
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False}
        for r in row.regexes
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if row.regexes == DIGITS_FIRST:
        splits = [{"type": "Digits", "individual_digits": True}]
    is_gpt2 = row.regexes == DIGITS_FIRST
    return {
        "version": "1.0",
        "added_tokens": [
            _added(len(texts), "<|endoftext|>", True),
            _added(len(texts) + 1, "<think>", False),
        ],
        "normalizer": {"type": "NFC"} if row.is_nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, byte_level | {"use_regex": is_gpt2}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": row.ignore_merges,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [[word[:-1], word[-1]] for word in _WORDS],
        },
    } | changes


def _added(token_id: int, text: str, is_special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, "special": is_special, **flags}


def tiny_case(family: str, **changes: Any) -> ModelCase:
    """Return a model whose rows fit every block format, with room for the tokenizer."""
    size = {"vocab_size": 272, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    config = MODEL_CASES_BY_NAME[family].config
    sizes = {**size, **_EXPERTS, **_LINEAR}
    fitting = {k: v for k, v in sizes.items() if k in config or k in size}
    if "linear_num_key_heads" in config:
        del fitting["head_dim"]  # the sections of its rotary embedding fit the case's own
    return ModelCase(f"tiny_{family}", config | fitting | changes)


def write_source(
    folder: Path, family: str = "qwen3", tokenizer: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """Write a tiny model with its tokenizer and a chat template."""
    case = tiny_case(family, **changes)
    files = {
        "tokenizer.json": json.dumps(tokenizer or bpe_json()),
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE},
    }
    return write_safetensors(folder, case.weights(), case.config, files=files)
