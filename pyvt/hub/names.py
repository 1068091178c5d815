"""What a model's name may be: an alias, a Hugging Face repository or a local path.

1. An existing file or folder is that path.
2. A word without a slash is an alias of the catalogue.
3. ``org/repo`` is a repository; ``org/repo@revision`` a commit, branch or tag of it;
   ``org/repo:pick`` or ``org/repo/pick`` one GGUF file of it, by its name or by the end of its name
   (``org/repo:Q4_K_M``).

A name becomes folders below ``$PYVT_HOME/models``; so nothing else is let through: no ``..``, no
absolute path, no backslash, no ``~``, no control characters.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pyvt.errors import ConfigError, did_you_mean
from pyvt.hub.catalogue import CATALOGUE, CatalogueEntry

DEFAULT_MODEL = "smollm2-135m"
"""The model of a command without ``-m``."""

MODEL_SUFFIXES = (".gguf", ".safetensors")
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_ALIAS = re.compile(_WORD)
_REPO = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>{_WORD}))?(?:[:/](?P<pick>{_WORD}))?"
)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]|^~|\.\.")


@dataclass(frozen=True, slots=True)
class AliasName:
    """A row of the catalogue."""

    alias: str
    entry: CatalogueEntry


@dataclass(frozen=True, slots=True)
class RepoName:
    """A Hugging Face repository, at a revision, or one GGUF file of it."""

    repo: str
    revision: str | None = None
    pick: str | None = None


ModelName = AliasName | RepoName | Path


def parse_name(name: str) -> ModelName:
    """Return what ``name`` stands for. Raises ConfigError for one that is none of the three."""
    if not name or re.search(r"[\x00-\x1f\x7f]", name):
        raise _bad_name(name, "an alias, org/repo or a path, without control characters")
    path = Path(name)
    if _exists(path):
        return path
    if _UNSAFE.search(name) or path.is_absolute() or name.startswith("."):
        raise _bad_name(name, "an existing file or folder, an alias or org/repo")
    if name in CATALOGUE:
        return AliasName(name, CATALOGUE[name])
    match = _REPO.fullmatch(name)
    is_missing_file = match and not match["pick"] and name.endswith(MODEL_SUFFIXES)
    if match is None or is_missing_file:
        hint = "" if "/" in name else f"; {did_you_mean(name, CATALOGUE)}"
        if name.startswith("shape:"):
            hint = "; shapes are for pyvt bench offline and peers, which make such a file"
        raise _bad_name(name, "an existing file or folder, an alias or org/repo", hint)
    return RepoName(match["repo"], match["revision"], match["pick"])


def is_safe_file_name(name: str) -> bool:
    """Return whether a file name that a repository lists may be written into a folder."""
    return _ALIAS.fullmatch(name) is not None and ".." not in name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes
        return False


def _bad_name(name: str, expected: str, hint: str = "") -> ConfigError:
    return ConfigError(
        f"[model] name: expected {expected}, got {name[:200]!r}{hint}", field="model"
    )
