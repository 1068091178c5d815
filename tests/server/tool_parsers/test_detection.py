"""The dialect of tool calls is found in the chat template."""

import json
from pathlib import Path

import pytest

from pyvt.server.tool_parsers import detect_tools

DIALECTS = {
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen3-Coder": "qwen_xml",
    "Qwen3.5-4B": "qwen_xml",
    "meta-llama-Llama-3.1-8B-Instruct": "llama_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama_json",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "LFM2.5-8B-A1B": "pythonic",
    "GLM-4.6": None,
    "moonshotai-Kimi-K2": None,
    "google-gemma-2-2b-it": None,
}


def test_qwen3_template_speaks_hermes(qwen3_tokenizer_dir: Path) -> None:
    config = json.loads((qwen3_tokenizer_dir / "tokenizer_config.json").read_text())

    dialect = detect_tools(config["chat_template"])

    assert dialect is not None
    assert dialect.name == "hermes"


def test_template_without_tools_speaks_nothing() -> None:
    assert detect_tools("{% for m in messages %}{{ m.content }}{% endfor %}") is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), DIALECTS.items())
def test_public_templates_speak(chat_templates_path: Path, name: str, expected: str | None) -> None:
    dialect = detect_tools(json.loads(chat_templates_path.read_text())[name])

    assert (None if dialect is None else dialect.name) == expected
