"""Snippets of the pages in docs/clients, run as they stand against a server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tiny_files import write_talker
from tests.clients.install import MISSING, NODE, PYTHON
from tests.clients.test_clients import Zoo, start, stop

PAGES = Path(__file__).resolve().parents[2] / "docs" / "clients"
# What a snippet of a language needs; those of settings are not run.
LANGUAGES = ("python", "javascript", "bash")
# Programs that are not installed for a test.
NOT_RUN = ("docker run", "claude\n")


def snippets() -> list[tuple[str, str, str]]:
    found = []
    for page in sorted(PAGES.glob("*.md")):
        blocks = re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
        found += [(page.stem, language, text) for language, text in blocks]
    return [
        snippet
        for snippet in found
        if snippet[1] in LANGUAGES and not any(word in snippet[2] for word in NOT_RUN)
    ]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[Zoo]:
    found = start(write_talker(tmp_path_factory.mktemp("zoo"), qwen3_tokenizer_dir), key=None)
    yield found
    stop(found)


@pytest.mark.parametrize(
    ("page", "language", "text"),
    [
        pytest.param(
            *snippet,
            id=f"{snippet[0]}-{number}",
            marks=[] if snippet[0] in ("curl",) else [pytest.mark.slow],
        )
        for number, snippet in enumerate(snippets())
    ],
)
def test_snippet_runs(zoo: Zoo, tmp_path: Path, page: str, language: str, text: str) -> None:
    text = text.replace("http://127.0.0.1:8000", zoo.url)
    match language:
        case "bash":
            if shutil.which("curl") is None:
                pytest.skip("curl is not installed")
            command = ["bash", "-euc", text]
        case "javascript":
            if not (NODE / "node_modules").is_dir():
                pytest.skip(MISSING)
            script = NODE / "snippet.mjs"
            script.write_text(text)
            command = ["node", str(script)]
        case _:
            python = sys.executable if page == "openai" else str(PYTHON)
            if not Path(python).is_file():
                pytest.skip(MISSING)
            command = [python, "-c", text]

    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)

    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert '"error"' not in done.stdout
