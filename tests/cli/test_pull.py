from pathlib import Path

import pytest

from pyvt.cli.main import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PYVT_HOME."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("name", ["../../x", "a\\b", "/etc/no/such", "~/x", "a\x00b", "org/../.."])
def test_pull_unsafe_name_ends_with_code_2(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", name]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: [model] name: expected ")
    assert not home.exists()


def test_pull_local_path_prints_it(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"
