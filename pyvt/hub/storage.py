"""The folder that models are kept in: paths, lock, room, checks and the step that makes them final.

Layout below ``$PYVT_HOME/models``:

1. ``<alias>/<file>``: the file of a catalogue row.
2. ``hf/<org>/<repo>[@<revision>]/<variant>/``: files of a repository; the variant is
   ``safetensors`` or the stem of a GGUF file.
3. A name that starts with a dot is not a model: ``.locks/``, and ``.<name>.partial`` beside the
   final name. What is not complete and checked has only such a name; one rename makes it final.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pyvt import envs
from pyvt.errors import DownloadError

CHUNK_BYTES = 1 << 20
Report = Callable[[str], None]
"""Takes one line that says what a pull does now."""


def models_dir() -> Path:
    """Return the folder of models; it need not exist. Raises DownloadError without a home."""
    try:
        return Path(envs.PYVT_HOME.get()).expanduser() / "models"
    except RuntimeError as error:
        raise DownloadError(
            "[pull] folder: this user has no home folder; set PYVT_HOME to a folder"
        ) from error


def partial_path(final: Path) -> Path:
    """Return where the content of ``final`` is made, in the same folder."""
    return final.with_name(f".{final.name}.partial")


@contextmanager
def pull_lock(name: str, report: Report) -> Iterator[None]:
    """Hold the lock of a model; a second pull waits. The kernel frees it with the process."""
    path = models_dir() / ".locks" / (name.replace("/", "--") + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as error:
        raise DownloadError(
            f"[pull] folder: cannot write below {str(models_dir())!r} ({error.strerror}); "
            "set PYVT_HOME to a folder that can be written"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process pulls {name}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_folder(path: Path) -> None:
    """Make a folder and those above it. Raises DownloadError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"[pull] folder: cannot make {str(path)!r} ({error.strerror}); "
            "set PYVT_HOME to a folder that can be written"
        ) from error


def check_room(name: str, folder: Path, needed_bytes: int) -> None:
    """Raise DownloadError where the disk of ``folder`` has less free than a pull needs."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DownloadError(
            f"[pull] {name}: expected {size_text(needed_bytes)} free in {str(folder)!r}, got "
            f"{size_text(free_bytes)}; free some space or set PYVT_HOME to a folder on another disk"
        )


def copy_hashed(source: IO[bytes], target: Path) -> str:
    """Write ``source`` to ``target``, flush it to the disk and return its sha256."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(file: str, expected: str, got: str) -> None:
    """Raise DownloadError where a file is not the one that was asked for."""
    if expected != got:
        raise DownloadError(
            f"[pull] {file}: expected sha256 {expected}, got {got}; nothing was kept"
        )


def make_final(partial: Path, final: Path) -> Path:
    """Give a complete and checked file or folder its name, in one step."""
    return partial.replace(final)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size_text(size_bytes: int) -> str:
    """Return a size as text, in kB or MB of 10^3 and 10^6 bytes."""
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1e3:,.0f} kB"
    return f"{size_bytes / 1e6:,.0f} MB"
