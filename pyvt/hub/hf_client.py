"""The Hugging Face server, as ``hf_repo.RepoClient``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyvt.errors import DownloadError
from pyvt.hub.hf_repo import SIDE_FILES, RepoFile
from pyvt.hub.names import RepoName

PATTERNS = [*SIDE_FILES, "*.safetensors", "*.gguf"]


class HuggingFaceClient:
    """The client of ``huggingface_hub``: its endpoint, token and offline mode hold."""

    def __init__(self) -> None:
        # Half a second of imports, for those who name a repository.
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors

        self._hub: Any = huggingface_hub

    def list_files(self, name: RepoName) -> tuple[str, list[RepoFile]]:
        """Return the commit of the revision and its files."""
        with self._reasons(name.repo):
            info = self._hub.HfApi().model_info(
                name.repo, revision=name.revision, files_metadata=True
            )
        files = [
            RepoFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else None, s.blob_id)
            for s in info.siblings or ()
        ]
        return info.sha, files

    def download(self, repo: str, commit: str, file: str, folder: Path) -> None:
        """Write one file into ``folder``."""
        with self._reasons(repo):
            self._hub.hf_hub_download(repo, file, revision=commit, local_dir=folder)

    def offline_folder(self, name: RepoName) -> Path | None:
        """Return the snapshot in the user's own cache where offline mode is on."""
        if not self._hub.constants.HF_HUB_OFFLINE:
            return None
        with self._reasons(name.repo, "offline mode is on and the local cache has it not"):
            snapshot = self._hub.snapshot_download(
                name.repo, revision=name.revision, allow_patterns=PATTERNS, local_files_only=True
            )
        return Path(snapshot)

    @contextmanager
    def _reasons(self, repo: str, context: str = "") -> Iterator[None]:
        errors = self._hub.errors
        try:
            yield
        except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
            raise DownloadError(
                f"[pull] {repo}: no such repository, or it needs a token; check the name, "
                "or accept its terms on its page and set HF_TOKEN"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise DownloadError(f"[pull] {repo}: no such revision") from error
        except Exception as error:  # the package hands through the errors of its HTTP library
            reason = context or (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DownloadError(f"[pull] {repo}: huggingface_hub: {reason}") from error
