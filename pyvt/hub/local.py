"""The models that were pulled: which are here, how large they are, and their removal."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyvt.errors import ConfigError, did_you_mean
from pyvt.hub import storage
from pyvt.hub.catalogue import CATALOGUE
from pyvt.hub.hf_repo import SAFETENSORS


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model below ``$PYVT_HOME/models``.

    Attributes:
        name: what ``-m`` takes.
        folder: what holds its files and nothing else.
        size_bytes: of all its files.
    """

    name: str
    folder: Path
    size_bytes: int


def list_models() -> list[LocalModel]:
    """Return the complete models of this machine, by name. Reads no content."""
    return sorted(_scan(storage.models_dir()), key=lambda model: model.name)


def remove_model(name: str) -> LocalModel:
    """Remove a pulled model and return what it was.

    Raises:
        ConfigError: no model of that name is here; a path is never removed.
    """
    models = {model.name: model for model in list_models()}
    if name not in models:
        raise ConfigError(
            f"[model] name: expected a model of `pyvt list`, got {name[:200]!r}; "
            f"{did_you_mean(name, models)}",
            field="model",
        )
    model = models[name]
    with storage.pull_lock(name.split("@")[0].split(":")[0], _quiet):
        hidden = storage.partial_path(model.folder)
        storage.remove(hidden)
        storage.remove(model.folder.replace(hidden))  # out of sight in one step
        _remove_empty(model.folder.parent)
    return model


def _scan(root: Path) -> Iterator[LocalModel]:
    for alias, entry in CATALOGUE.items():
        path = root / alias / entry.file
        if path.is_file() and path.stat().st_size == entry.size_bytes:
            yield LocalModel(alias, path.parent, entry.size_bytes)
    for folder in root.glob("hf/*/*/*"):
        if folder.is_dir() and not folder.name.startswith("."):
            repo = folder.parent.relative_to(root / "hf").as_posix()
            name = repo if folder.name == SAFETENSORS else f"{repo}:{folder.name}"
            sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            yield LocalModel(name, folder, sum(sizes))


def _remove_empty(folder: Path) -> None:
    """Remove a folder, and those above it below the folder of models, while they are empty."""
    while folder != storage.models_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _quiet(line: str) -> None:
    """Take a line of progress and show nothing."""
