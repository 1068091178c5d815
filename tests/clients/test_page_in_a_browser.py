"""The page in Chromium: chats with a key, gauges, dark mode, a phone's width, the keyboard."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tiny_files import write_talker
from tests.clients.install import MISSING, PYTHON
from tests.clients.test_clients import KEY, Zoo, start, stop

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[Zoo]:
    found = start(write_talker(tmp_path_factory.mktemp("zoo"), qwen3_tokenizer_dir))
    yield found
    stop(found)


@pytest.mark.slow
def test_page_works_in_chromium(zoo: Zoo, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None or not PYTHON.is_file():
        pytest.skip(f"there is no Chromium, or {MISSING}")
    given = {"url": zoo.url, "key": KEY, "browser": browser, "pictures": str(tmp_path)}

    done = subprocess.run(
        [str(PYTHON), str(HERE / "drive_page.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["errors"] == []
    assert seen["elsewhere"] == []
    assert seen["has_question"]
    assert seen["num_shown"] >= 2
    assert seen["gauge"].isdigit()
    assert seen["model"].endswith("zoo-model")
    assert seen["is_darkened"]
    assert seen["fits_a_phone"]
    assert seen["is_stopped"]
    assert seen["is_new"]
    assert (tmp_path / "page.png").stat().st_size > 5000
    assert (tmp_path / "phone.png").stat().st_size > 5000
