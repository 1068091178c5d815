"""Snippets of the pages in docs/clients, run as they stand against a server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvt.hub.names import DEFAULT_MODEL
from pyvt.server.tool_parsers import detect_tools
from pyvt.weights.resolve import open_model
from tests.cli.tiny_files import write_talker
from tests.clients.install import MISSING, NODE, PYTHON
from tests.clients.test_clients import Zoo, start, stop

PAGES = Path(__file__).resolve().parents[2] / "docs" / "clients"
# What a snippet of a language needs; those of settings are not run.
LANGUAGES = ("python", "javascript", "bash")
# How snippets name a model, and how pages say that it is served.
NAMED = re.compile(r'(?:\bmodel *= *"|\bmodel: |ANTHROPIC_MODEL=)(?:openai/)?([\w./-]+)')
SERVED = re.compile(r"`pyvt serve ([\w./-]+)`")
# Programs that are not installed for a test.
NOT_RUN = ("docker run", "claude\n")


def blocks() -> list[tuple[str, str, str]]:
    """Return every block of every page: the page, the language, the text."""
    return [
        (page.stem, language, text)
        for page in sorted(PAGES.glob("*.md"))
        for language, text in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
    ]


def served_on(page: str) -> set[str]:
    """Return the models that a page tells to serve."""
    return set(SERVED.findall((PAGES / f"{page}.md").read_text()))


def snippets() -> list[tuple[str, str, str]]:
    return [
        snippet
        for snippet in blocks()
        if snippet[1] in LANGUAGES and not any(word in snippet[2] for word in NOT_RUN)
    ]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[Zoo]:
    served = sorted(set().union(*(served_on(page.stem) for page in PAGES.glob("*.md"))))
    names = [word for name in served for word in ("--served-model-name", name)]
    model = write_talker(tmp_path_factory.mktemp("zoo"), qwen3_tokenizer_dir)
    found = start(model, *names, key=None)
    yield found
    stop(found)


def test_models_of_snippets_are_served_by_the_command_on_their_page() -> None:
    named = {(page, name) for page, _, text in blocks() for name in NAMED.findall(text)}

    assert {page for page, _ in named} >= {"agents", "continue", "langchain", "litellm"}
    assert [(page, name) for page, name in sorted(named) if name not in served_on(page)] == []


def test_snippets_with_tools_are_for_a_model_that_has_them(smollm2_path: Path) -> None:
    """The model that is there without a name has none."""
    files = open_model(smollm2_path)
    files.close()
    assert detect_tools("".join(files.chat_templates.values())) is None

    texts = [text for page, _, text in blocks() if "tools" in text or page == "agents"]

    assert texts
    assert not [text for text in texts if DEFAULT_MODEL in text]


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
