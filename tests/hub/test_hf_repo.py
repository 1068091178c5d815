import hashlib
from pathlib import Path

import pytest

from pyvt.errors import ConfigError, DownloadError
from pyvt.hub.hf_repo import RepoFile, choose, locate_repo, pull_repo, variants_of
from pyvt.hub.names import RepoName
from tests.hub.tiny_model import model_files

REPO = RepoName("org/repo")


class FakeClient:
    """A server with these files; ``fails_at`` is the file whose download breaks off once."""

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        fails_at: str = "",
        offline: Path | None = None,
        hashes: dict[str, str] | None = None,
    ) -> None:
        self.files = files
        self.fails_at = fails_at
        self.offline = offline
        self.hashes = hashes or {}
        self.downloads: list[str] = []

    def list_files(self, name: RepoName) -> tuple[str, list[RepoFile]]:
        listed = [
            RepoFile(file, len(data), self.hashes.get(file, hashlib.sha256(data).hexdigest()))
            for file, data in self.files.items()
        ]
        return "commit", listed

    def download(self, repo: str, commit: str, file: str, folder: Path) -> None:
        self.downloads.append(file)
        if file == self.fails_at:
            self.fails_at = ""
            cache = folder / ".cache"
            cache.mkdir()
            (cache / "x.incomplete").write_bytes(b"half")
            raise DownloadError("[pull] org/repo: connection lost")
        (folder / file).write_bytes(self.files[file])

    def offline_folder(self, name: RepoName) -> Path | None:
        return self.offline


CHECKPOINT = {
    "README.md": b"words",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"one",
    "model-00002-of-00002.safetensors": b"two",
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "../../escape.safetensors": b"bad",
}
GGUFS = {
    "m-Q4_K_M.gguf": b"four",
    "m-Q8_0-00001-of-00002.gguf": b"eight",
    "m-Q8_0-00002-of-00002.gguf": b"eight",
    "m-BF16-00001-of-00002.gguf": b"half",
}


def _ignore(line: str) -> None:
    """Take a line of progress."""


def test_pull_repo_takes_only_what_a_model_needs(home: Path) -> None:
    path = pull_repo(REPO, FakeClient(CHECKPOINT), _ignore)

    assert path == home / "models/hf/org/repo/safetensors"
    assert sorted(p.name for p in path.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert locate_repo(REPO) == path


def test_pull_repo_by_quant_takes_every_part_of_the_file(home: Path) -> None:
    name = RepoName("org/repo", None, "q8_0")

    path = pull_repo(name, FakeClient(GGUFS), _ignore)

    assert path.name == "m-Q8_0-00001-of-00002.gguf"
    assert (path.parent / "m-Q8_0-00002-of-00002.gguf").is_file()
    assert locate_repo(name) == path
    assert locate_repo(REPO) == path


def test_pull_repo_broken_off_is_not_a_model_and_goes_on(home: Path) -> None:
    client = FakeClient(CHECKPOINT, fails_at="model-00002-of-00002.safetensors")
    with pytest.raises(DownloadError, match="connection lost"):
        pull_repo(REPO, client, _ignore)
    is_here_early = locate_repo(REPO)

    path = pull_repo(REPO, client, _ignore)

    assert is_here_early is None
    assert locate_repo(REPO) == path
    assert not any(".partial" in file or ".cache" in file for file in model_files(home))


def test_pull_repo_wrong_hash_is_refused_and_removed(home: Path) -> None:
    client = FakeClient(GGUFS, hashes={"m-Q4_K_M.gguf": "0" * 64})

    with pytest.raises(DownloadError, match="expected sha256 0000"):
        pull_repo(RepoName("org/repo", None, "Q4_K_M"), client, _ignore)

    assert model_files(home) == []


def test_pull_repo_wrong_git_hash_is_refused(home: Path) -> None:
    class GitClient(FakeClient):
        def list_files(self, name: RepoName) -> tuple[str, list[RepoFile]]:
            return "commit", [RepoFile("m.gguf", 2, None, "0" * 40)]

    with pytest.raises(DownloadError, match="expected git blob"):
        pull_repo(REPO, GitClient({"m.gguf": b"{}"}), _ignore)


def test_pull_repo_right_git_hash_is_taken(home: Path) -> None:
    class GitClient(FakeClient):
        def list_files(self, name: RepoName) -> tuple[str, list[RepoFile]]:
            blob = "9e26dfeeb6e641a33dae4961196235bdb965b21b"  # git hash-object of "{}"
            return "commit", [RepoFile("m.gguf", 2, None, blob)]

    assert pull_repo(REPO, GitClient({"m.gguf": b"{}"}), _ignore).read_bytes() == b"{}"


def test_pull_repo_offline_opens_the_users_own_copy(home: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "m.gguf").write_bytes(b"x")

    path = pull_repo(REPO, FakeClient({}, offline=snapshot), _ignore)

    assert path == snapshot / "m.gguf"


def test_choose_several_files_lists_them() -> None:
    with pytest.raises(ConfigError, match=r"pick one as org/repo:NAME; .*m-Q4_K_M, m-Q8_0"):
        choose(REPO, variants_of(list(GGUFS)))


def test_choose_unknown_file_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="did you mean 'm-Q4_K_M'"):
        choose(RepoName("org/repo", None, "m-Q4_K_S"), variants_of(list(GGUFS)))


def test_choose_repository_without_a_model_says_so() -> None:
    with pytest.raises(ConfigError, match="expected safetensors or GGUF files, got none"):
        choose(REPO, variants_of(["README.md", "pytorch_model.bin"]))
