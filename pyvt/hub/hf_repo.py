"""Fetch files of a Hugging Face repository, through ``huggingface_hub``.

That package brings the endpoint, the token (``HF_TOKEN``), offline mode (``HF_HUB_OFFLINE``), the
progress bars and the resuming of a broken download; pyvt adds which files, the checks and the
rename. ``tokenizers`` depends on it, so it is there; it is imported only here, when a repository is
asked for.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyvt.errors import ConfigError, DownloadError, did_you_mean
from pyvt.hub import storage
from pyvt.hub.names import RepoName, is_safe_file_name

SAFETENSORS = "safetensors"
SIDE_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "chat_template.jinja", "chat_template.json"),
    "model.safetensors.index.json",
)
_SPLIT = re.compile(r"-\d{5}-of-(?P<count>\d{5})$")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file that a repository lists, with the hash the server gives: sha256 or git's own."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class RepoClient(Protocol):
    """What a pull asks of a server. Every method raises DownloadError with the server's reason."""

    def list_files(self, name: RepoName) -> tuple[str, list[RepoFile]]:
        """Return the commit of the revision and its files."""

    def download(self, repo: str, commit: str, file: str, folder: Path) -> None:
        """Write one file into ``folder``, with a progress bar; goes on where it was broken off."""

    def offline_folder(self, name: RepoName) -> Path | None:
        """Return the user's own copy where offline mode is on, None where it is off."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The files of a repository that make one model: ``safetensors``, or the stem of a GGUF."""

    name: str
    files: tuple[str, ...]

    def path_in(self, folder: Path) -> Path:
        """Return what to open: the folder, or the first GGUF file in it."""
        return folder if self.name == SAFETENSORS else folder / self.files[0]


def variants_of(files: Sequence[str]) -> list[Variant]:
    """Return the models that a list of file names holds; safetensors first, then by name."""
    weights = [f for f in files if f.endswith(".safetensors")]
    variants = []
    if weights:
        side = [f for f in SIDE_FILES if f in files]
        variants.append(Variant(SAFETENSORS, (*side, *sorted(_hf_weights(weights)))))
    by_stem: dict[str, list[str]] = {}
    for file in sorted(f for f in files if f.endswith(".gguf")):
        by_stem.setdefault(_SPLIT.sub("", file.removesuffix(".gguf")), []).append(file)
    variants += [
        Variant(stem, tuple(group)) for stem, group in sorted(by_stem.items()) if _is_whole(group)
    ]
    return variants


def choose(name: RepoName, variants: Sequence[Variant]) -> Variant:
    """Return the variant that a name picks. Raises ConfigError where none or several would do."""
    if name.pick is None:
        found = [v for v in variants if v.name == SAFETENSORS] or list(variants)
    else:
        found = [v for v in variants if name.pick in (*v.files, v.name)] or [
            v for v in variants if re.search(rf"[.-]{re.escape(name.pick)}$", v.name, re.I)
        ]
    if len(found) == 1:
        return found[0]
    if not variants:
        raise ConfigError(f"[model] {name.repo}: expected safetensors or GGUF files, got none")
    names = [v.name for v in found or variants]
    which = did_you_mean(name.pick or "", names)
    raise ConfigError(
        f"[model] {name.repo}: expected one file, got {len(found)} for {name.pick!r}; "
        f"pick one as {name.repo}:NAME; {which}",
        field="model",
    )


def pull_repo(name: RepoName, client: RepoClient, report: storage.Report) -> Path:
    """Fetch the files that ``name`` picks and return what to open. The caller holds the lock."""
    offline = client.offline_folder(name)
    if offline is not None:
        names = [path.name for path in offline.iterdir() if path.is_file()]
        return choose(name, variants_of(names)).path_in(offline)
    commit, listed = client.list_files(name)
    files = {file.name: file for file in listed if is_safe_file_name(file.name)}
    variant = choose(name, variants_of(list(files)))
    final = repo_folder(name) / variant.name
    if final.is_dir():
        return variant.path_in(final)
    partial = storage.partial_path(final)
    storage.make_folder(partial)
    wanted = [files[file] for file in variant.files]
    have_bytes = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    total_bytes = sum(file.size_bytes for file in wanted)
    storage.check_room(name.repo, partial, max(total_bytes - have_bytes, 0))
    report(f"fetching {len(wanted)} files of {name.repo} ({storage.size_text(total_bytes)})")
    for file in wanted:
        client.download(name.repo, commit, file.name, partial)
        check_file(partial / file.name, file)
    storage.remove(partial / ".cache")
    return variant.path_in(storage.make_final(partial, final))


def locate_repo(name: RepoName) -> Path | None:
    """Return what to open of a repository that was pulled, None where it was not."""
    folder = repo_folder(name)
    if not folder.is_dir():
        return None
    variants = [
        variant
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and not sub.name.startswith(".")
        for variant in variants_of([path.name for path in sub.iterdir()])
    ]
    try:
        variant = choose(name, variants)
    except ConfigError:
        return None
    return variant.path_in(folder / variant.name)


def repo_folder(name: RepoName) -> Path:
    """Return the folder of a repository's variants."""
    at = f"@{name.revision}" if name.revision else ""
    return storage.models_dir() / "hf" / f"{name.repo}{at}"


def check_file(path: Path, file: RepoFile) -> None:
    """Check the size and hash that the server gave; remove a wrong file. Raises DownloadError."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes != file.size_bytes:
            raise DownloadError(
                f"[pull] {file.name}: expected {file.size_bytes} bytes, got {size_bytes}"
            )
        if file.sha256:
            storage.check_sha256(file.name, file.sha256, storage.sha256_of(path))
        elif file.git_sha1 and _git_sha1(path, size_bytes) != file.git_sha1:
            raise DownloadError(
                f"[pull] {file.name}: expected git blob {file.git_sha1}, got another"
            )
    except DownloadError:
        storage.remove(path)
        raise


def _git_sha1(path: Path, size_bytes: int) -> str:
    digest = hashlib.sha1(f"blob {size_bytes}\0".encode(), usedforsecurity=False)
    digest.update(path.read_bytes())
    return digest.hexdigest()


def _hf_weights(files: Sequence[str]) -> list[str]:
    """Return the files in the usual spelling (``model…``), all where there are none such."""
    return [f for f in files if f.startswith("model")] or list(files)


def _is_whole(group: Sequence[str]) -> bool:
    match = _SPLIT.search(group[0].removesuffix(".gguf"))
    return len(group) == (int(match["count"]) if match else 1)
