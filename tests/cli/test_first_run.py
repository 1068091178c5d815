"""What the first command tells of the build."""

import json
from pathlib import Path

import pytest

from pyvt.cli import first_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of pyvt's own files."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def place_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = folder / "pyvt" / "backends" / "build_info.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"cpu": {"is_built": True}}))
    monkeypatch.setattr(first_run, "RECORD", record)


def test_build_is_told_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_record(tmp_path / "site-packages", monkeypatch)

    first_run.tell_build()
    first = capsys.readouterr()
    first_run.tell_build()

    assert first.err.startswith("pyvt: backend cpu: ")
    assert (first.out, capsys.readouterr().err) == ("", "")


def test_build_is_told_again_where_nothing_can_be_kept(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_record(tmp_path / "site-packages", monkeypatch)
    home.write_text("a file in the way")

    first_run.tell_build()
    first_run.tell_build()

    assert capsys.readouterr().err.count("pyvt: backend cpu: ") == 2


def test_checkout_tells_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_record(tmp_path / "checkout", monkeypatch)

    first_run.tell_build()

    assert capsys.readouterr().err == ""
    assert not home.exists()
