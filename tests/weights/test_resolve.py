"""open_model: what a path stands for, and the files beside the weights."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.weights import open_model

A = np.arange(8, dtype=np.float32)
QWEN3 = {"general.architecture": "qwen3"}
LIST = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]


def test_open_safetensors_folder_returns_all_its_files(tmp_path: Path) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [1, 2]},
        "tokenizer.json": '{"ß": 1}',
        "tokenizer_config.json": {"chat_template": "t"},
    }
    write_safetensors(tmp_path, {"a": A}, {"model_type": "qwen3"}, files=files)

    model = open_model(tmp_path)

    assert model.kind == "safetensors"
    assert model.path == tmp_path
    assert list(model.source.names()) == ["a"]
    assert model.config == {"model_type": "qwen3"}
    assert model.generation_config == {"eos_token_id": [1, 2]}
    assert model.gguf_metadata is None
    assert model.tokenizer_json == '{"ß": 1}'
    assert model.tokenizer_config == {"chat_template": "t"}
    assert model.chat_templates == {"default": "t"}


def test_open_bare_safetensors_folder_has_no_more_than_a_config(tmp_path: Path) -> None:
    model = open_model(write_safetensors(tmp_path, {"a": A}, {}))

    assert model.config == {}
    assert model.generation_config is None
    assert model.tokenizer_json is None
    assert model.tokenizer_config is None
    assert model.chat_templates == {}


@pytest.mark.parametrize("shards", [1, 2])
def test_open_safetensors_file_takes_the_config_beside_it(shards: int, tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A, "b": A}, {"k": 1}, shards=shards)

    model = open_model(min(tmp_path.glob("*.safetensors")))

    assert set(model.source.names()) == {"a", "b"}
    assert model.config == {"k": 1}


def test_open_gguf_file_returns_its_metadata_and_templates(tmp_path: Path) -> None:
    metadata = QWEN3 | {
        "tokenizer.chat_template.tool_use": "t",
        "tokenizer.chat_template": "d",
        "tokenizer.chat_templates": ["tool_use"],
    }
    path = write_gguf(tmp_path / "m.gguf", metadata, {"a": A})
    (tmp_path / "config.json").write_text("not read")

    model = open_model(str(path))

    assert model.kind == "gguf"
    assert model.config is None
    assert model.gguf_metadata == metadata
    assert list(model.chat_templates.items()) == [("default", "d"), ("tool_use", "t")]


@pytest.mark.parametrize("splits", [1, 3])
def test_open_folder_of_one_gguf_model(splits: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", QWEN3, {"a": A, "b": A, "c": A}, splits=splits)
    write_gguf(tmp_path / "mmproj-m.gguf", QWEN3, {"v": A})

    model = open_model(tmp_path)

    assert model.path == tmp_path
    assert list(model.source.names()) == ["a", "b", "c"]


def test_open_folder_of_both_kinds_reads_safetensors_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_safetensors(tmp_path, {"a": A}, {})
    write_gguf(tmp_path / "m.gguf", QWEN3, {"b": A})
    logger = logging.getLogger("pyvt")
    logger.addHandler(caplog.handler)

    model = open_model(tmp_path)

    logger.removeHandler(caplog.handler)
    assert model.kind == "safetensors"
    assert "gguf files beside safetensors ignored: m.gguf" in caplog.text


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {"chat_template.jinja": "j", "tokenizer_config.json": {"chat_template": "t"}},
            [("default", "j")],
            id="jinja_file_wins",
        ),
        pytest.param(
            {"tokenizer_config.json": {"chat_template": "t"}, "chat_template.json": {}},
            [("default", "t")],
            id="tokenizer_config",
        ),
        pytest.param(
            {"tokenizer_config.json": {"chat_template": LIST}},
            [("default", "d"), ("tool_use", "t")],
            id="list_of_tokenizer_config",
        ),
        pytest.param(
            {"tokenizer_config.json": {}, "chat_template.json": {"chat_template": "l"}},
            [("default", "l")],
            id="legacy_file",
        ),
    ],
)
def test_chat_templates_come_from_the_first_place(
    files: Any, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    write_safetensors(tmp_path, {"a": A}, {}, files=files)

    assert list(open_model(tmp_path).chat_templates.items()) == expected


def test_chat_templates_of_a_folder_join_the_jinja_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {}, files={"chat_template.jinja": "j"})
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("t")

    templates = open_model(tmp_path).chat_templates

    assert list(templates.items()) == [("default", "j"), ("tool_use", "t")]


def test_config_with_a_surrogate_pair_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {}, files={"config.json": '{"a": "\\ud83d\\ude42"}'})

    assert open_model(tmp_path).config == {"a": "🙂"}


def test_real_tokenizer_files_are_read(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"a": A}, {})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((qwen3_tokenizer_dir / name).read_bytes())

    model = open_model(tmp_path)

    assert json.loads(model.tokenizer_json or "")["model"]["type"] == "BPE"
    assert "<|im_start|>" in model.chat_templates["default"]


def test_close_may_be_called_twice(tmp_path: Path) -> None:
    model = open_model(write_safetensors(tmp_path, {"a": A}, {}))

    model.close()
    model.close()
