"""The real client of huggingface_hub, offline or with its network call replaced."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import RepositoryNotFoundError

from pyvt import hub
from pyvt.errors import DownloadError
from pyvt.hub.hf_client import HuggingFaceClient
from pyvt.hub.hf_repo import RepoFile
from pyvt.hub.names import RepoName
from pyvt.weights.resolve import open_model
from tests.cli.tiny_files import write_folder

REPO = RepoName("org/repo")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, offline mode and an empty PYVT_HOME."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path / "hf"


def _replace_model_info(monkeypatch: pytest.MonkeyPatch, model_info: Any) -> None:
    monkeypatch.setattr(
        huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=model_info), raising=False
    )


def test_pull_offline_opens_the_cache_through_its_links(
    offline_cache: Path, tmp_path: Path
) -> None:
    root = offline_cache / "models--org--repo"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    (root / "blobs").mkdir()
    for number, file in enumerate(sorted(write_folder(tmp_path / "m").iterdir())):
        blob = root / "blobs" / f"{number}"
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)

    path = hub.pull("org/repo")

    assert path == snapshot
    open_model(path).close()


def test_pull_offline_without_a_copy_says_so(offline_cache: Path) -> None:
    with pytest.raises(DownloadError, match="offline mode is on"):
        hub.pull("org/repo")


def test_list_files_takes_sizes_and_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def model_info(repo: str, **settings: Any) -> Any:
        assert (repo, settings) == ("org/repo", {"revision": None, "files_metadata": True})
        siblings = [
            SimpleNamespace(rfilename="config.json", size=2, lfs=None, blob_id="b1"),
            SimpleNamespace(
                rfilename="m.gguf", size=9, lfs=SimpleNamespace(sha256="ab"), blob_id="b2"
            ),
        ]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    _replace_model_info(monkeypatch, model_info)

    commit, files = HuggingFaceClient().list_files(REPO)

    assert commit == COMMIT
    assert files == [
        RepoFile("config.json", 2, None, "b1"),
        RepoFile("m.gguf", 9, "ab", "b2"),
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            RepositoryNotFoundError("no", response=SimpleNamespace(headers={}, request=None)),
            "set HF_TOKEN",
        ),
        (ConnectionError("Name or service not known"), "Name or service not known"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_list_files_gives_the_reason(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(repo: str, **settings: Any) -> Any:
        raise error

    _replace_model_info(monkeypatch, model_info)

    with pytest.raises(DownloadError, match=text):
        HuggingFaceClient().list_files(REPO)
