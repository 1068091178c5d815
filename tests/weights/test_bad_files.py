"""Every broken file is an error that names file and tensor, in little time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyvt.errors import CheckpointError
from pyvt.weights import open_model
from tests.weights.bad_files import BAD_FILES, BadFile

MAX_SECONDS = 1.0
MAX_GROWTH_BYTES = 200_000_000


@pytest.mark.parametrize("bad", [pytest.param(bad, id=name) for name, bad in BAD_FILES.items()])
def test_bad_file_error_names_file_and_tensor(bad: BadFile, tmp_path: Path) -> None:
    path = bad.build(tmp_path)

    with pytest.raises(bad.error) as caught:
        open_model(path)

    text = str(caught.value)
    assert bad.text in text
    assert bad.file in text
    assert bad.tensor is None or repr(bad.tensor) in text
    if isinstance(caught.value, CheckpointError):
        assert Path(caught.value.path or "").name.startswith(bad.file.split("\\")[0])
        assert caught.value.tensor == bad.tensor


def test_bad_files_take_little_time_and_memory(tmp_path: Path, repo: Path) -> None:
    paths = []
    for name, bad in BAD_FILES.items():
        folder = tmp_path / name
        folder.mkdir()
        paths.append(str(bad.build(folder)))

    result = subprocess.run(
        [sys.executable, "-m", "tests.weights.open_paths"],
        input=json.dumps(paths),
        cwd=repo,
        capture_output=True,
        text=True,
        check=True,
    )

    report = json.loads(result.stdout)
    assert [path for path in paths if report["errors"][path] == "opened"] == []
    assert report["slowest_s"] < MAX_SECONDS
    assert report["growth_bytes"] < MAX_GROWTH_BYTES


def test_bad_files_are_at_least_forty_of_each_kind() -> None:
    kinds = [name.split("-")[0].split("_")[0] for name in BAD_FILES]

    assert kinds.count("gguf") >= 40
    assert kinds.count("safetensors") + kinds.count("shards") >= 40
