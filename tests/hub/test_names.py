from pathlib import Path

import pytest

from pyvt.errors import ConfigError
from pyvt.hub.names import AliasName, RepoName, is_safe_file_name, parse_name


def test_parse_name_alias_is_its_row() -> None:
    parsed = parse_name("smollm2-135m")

    assert isinstance(parsed, AliasName)
    assert parsed.entry.size_bytes == 98_362_432


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-0.6B", RepoName("Qwen/Qwen3-0.6B")),
        ("Qwen/Qwen3-0.6B@c1899de", RepoName("Qwen/Qwen3-0.6B", "c1899de")),
        ("org/repo:Q4_K_M", RepoName("org/repo", None, "Q4_K_M")),
        ("org/repo/model.Q8_0.gguf", RepoName("org/repo", None, "model.Q8_0.gguf")),
        ("org/repo@v1:model.gguf", RepoName("org/repo", "v1", "model.gguf")),
    ],
)
def test_parse_name_repository_gives_its_parts(name: str, expected: RepoName) -> None:
    assert parse_name(name) == expected


def test_parse_name_existing_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2-135m").mkdir()
    monkeypatch.chdir(tmp_path)

    assert parse_name("smollm2-135m") == Path("smollm2-135m")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("../../x", id="parent"),
        pytest.param("org/../x", id="parent_inside"),
        pytest.param("org/repo:../x", id="parent_as_file"),
        pytest.param("org/repo@../x", id="parent_as_revision"),
        pytest.param("/no/such/model.gguf", id="absolute"),
        pytest.param("a\x00b", id="nul"),
        pytest.param("smollm2-135m\n", id="newline"),
        pytest.param("org\\repo", id="backslash"),
        pytest.param("~/model.gguf", id="home"),
        pytest.param("~root", id="other_home"),
        pytest.param(".hidden/x", id="dot"),
        pytest.param("org/.hidden", id="dot_repository"),
        pytest.param("org/repo/a/b.gguf", id="deep"),
        pytest.param("https://host/x", id="url"),
        pytest.param("models/missing.gguf", id="missing_file"),
        pytest.param("x" * 5000, id="long"),
    ],
)
def test_parse_name_that_is_none_of_the_three_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_name(name)

    assert caught.value.field == "model"
    assert len(str(caught.value)) < 500


def test_parse_name_near_miss_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'smollm2-135m'"):
        parse_name("smolm2-135m")


def test_shape_of_the_benchmarks_is_told_as_one() -> None:
    with pytest.raises(ConfigError, match=r"shapes are for pyvt bench offline and peers"):
        parse_name("shape:tiny:bf16")


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "a\\b", ".x", "", "x..y", "x\n"])
def test_is_safe_file_name_refuses_what_leaves_the_folder(name: str) -> None:
    assert not is_safe_file_name(name)
