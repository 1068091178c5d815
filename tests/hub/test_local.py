from pathlib import Path

import pytest

from pyvt.cli.main import main
from pyvt.errors import ConfigError
from pyvt.hub.local import list_models, remove_model
from tests.hub.tiny_model import ENTRY


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.fixture
def pulled(home: Path) -> Path:
    """An alias, a repository, two GGUF files of another one, and what is not complete."""
    models = home / "models"
    _write(models / "tiny" / ENTRY.file, ENTRY.size_bytes)
    _write(models / "hf/org/repo/safetensors/model.safetensors", 30)
    _write(models / "hf/org/repo/safetensors/config.json", 3)
    _write(models / "hf/org/ggufs@main/m-Q8_0/m-Q8_0.gguf", 8)
    _write(models / "hf/org/ggufs@main/m-Q4_0/m-Q4_0.gguf", 4)
    _write(models / "hf/org/broken/.safetensors.partial/model.safetensors", 5)
    return models


def test_list_names_complete_models_with_their_sizes(pulled: Path) -> None:
    assert [(model.name, model.size_bytes) for model in list_models()] == [
        ("org/ggufs@main:m-Q4_0", 4),
        ("org/ggufs@main:m-Q8_0", 8),
        ("org/repo", 33),
        ("tiny", ENTRY.size_bytes),
    ]


def test_list_of_an_alias_with_a_broken_file_leaves_it_out(pulled: Path) -> None:
    (pulled / "tiny" / ENTRY.file).write_bytes(b"cut")
    assert "tiny" not in [model.name for model in list_models()]


def test_remove_takes_one_model_and_the_folders_that_it_leaves_empty(pulled: Path) -> None:
    remove_model("org/ggufs@main:m-Q8_0")
    assert (pulled / "hf/org/ggufs@main/m-Q4_0/m-Q4_0.gguf").is_file()
    remove_model("org/ggufs@main:m-Q4_0")
    assert not (pulled / "hf/org/ggufs@main").exists()
    remove_model("tiny")
    assert [model.name for model in list_models()] == ["org/repo"]


@pytest.mark.parametrize("name", ["org/rep", "../../etc", "/", "", "hf", "org"])
def test_remove_of_what_is_no_model_removes_nothing(name: str, pulled: Path) -> None:
    before = sorted(pulled.rglob("*"))
    with pytest.raises(ConfigError, match="expected a model of `pyvt list`"):
        remove_model(name)
    assert sorted(pulled.rglob("*")) == before


def test_commands_list_and_remove(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "org/repo", "tiny"]) == 0
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n")[0].split()[:3] == ["org/ggufs@main:m-Q4_0", "0", "kB"]
    assert "removed org/repo" in err
    assert main(["rm", "org/repo"]) == 2


def test_list_without_models_says_what_to_do(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr() == ("", "no model is here; try: pyvt pull\n")
