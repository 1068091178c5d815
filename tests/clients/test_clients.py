"""The client zoo: what official and common clients understand of a running server.

Each driver reads scenarios as JSON from stdin and writes what its client understood; null for a
scenario that the client has no words for.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny_files import write_talker
from tests.clients.install import MISSING, NODE, PYTHON
from tests.clients.scenarios import PERSON, TOOL, scenarios

HERE = Path(__file__).resolve().parent
KEY = "zoo"
# Scenarios that a client has no words for; all others it must have understood.
NONE_OF = {
    "openai": {"count", "run_tools"},
    "anthropic": {
        *("schema", "completion", "response", "response_stream", "embedding", "run_tools"),
    },
    "langchain": {
        *("models", "completion", "response", "response_stream", "count", "run_tools"),
    },
    "litellm": {
        *("models", "completion", "response", "response_stream", "embedding", "count"),
        "run_tools",
    },
    "curl": {"response", "response_stream", "run_tools"},
    "openai_node": {"count"},
}


@dataclass
class Zoo:
    """A server in a process of its own, whose model writes what it is told to."""

    process: subprocess.Popen[str]
    url: str
    model: str

    def post(self, path: str, body: Any) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text and of the end of a turn."""
        body = {"prompt": f"{text}<|im_end|>", "add_special_tokens": False}
        return list(self.post("/tokenize", body)["tokens"])

    def num_running(self) -> float:
        request = urllib.request.Request(
            f"{self.url}/metrics", headers={"authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            found = re.search(r"num_requests_running\{.*\} ([\d.]+)", reply.read().decode())
        assert found is not None
        return float(found[1])


def start(model: Path, *options: str, key: str | None = KEY) -> Zoo:
    command = [sys.executable, "-m", "pyvt", "serve", str(model), "--port", "0"]
    command += [] if key is None else ["--api-key", key]
    process = subprocess.Popen(
        [*command, "--served-model-name", "zoo-model", "--disable-uvicorn-access-log", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYVT_TEST_HOOKS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("try"):
            break
    (url,) = [line.split()[-1] for line in lines if line.startswith("url")]
    return Zoo(process, url, "zoo-model")


def stop(zoo: Zoo) -> None:
    zoo.process.terminate()
    assert zoo.process.stderr is not None
    with zoo.process.stderr:
        assert "Traceback" not in zoo.process.stderr.read()
    assert zoo.process.wait(60) == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> Iterator[Zoo]:
    zoo = start(write_talker(tmp_path_factory.mktemp("zoo"), qwen3_tokenizer_dir))
    yield zoo
    stop(zoo)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Zoo]:
    speech = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")
    zoo = start(smollm2_path, "--max-model-len", "1024", *speech)
    yield zoo
    stop(zoo)


def command_of(client: str) -> list[str]:
    """Return what runs a driver; skips where its client is not installed."""
    if client == "openai_node":
        if not (NODE / "node_modules").is_dir():
            pytest.skip(MISSING)
        # Node looks for packages beside the script.
        return ["node", shutil.copy(HERE / "drive_openai_node.mjs", NODE)]
    script = str(HERE / f"drive_{client}.py")
    if client == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        return [sys.executable, script]
    if client == "openai":
        return [sys.executable, script]
    if not PYTHON.is_file():
        pytest.skip(MISSING)
    return [str(PYTHON), script]


def test_every_client_has_the_same_thirty_scenarios() -> None:
    shared = scenarios().keys() - set().union(*NONE_OF.values())
    assert len(shared) >= 30


def drive(client: str, zoo: Zoo) -> None:
    """Run all scenarios through a client and compare what it understood."""
    cases = scenarios()
    for case in cases.values():
        if case.get("text") is not None:
            case["ids"] = zoo.ids(case["text"])
    given = {"url": zoo.url, "key": KEY, "model": zoo.model, "tool": TOOL, "person": PERSON}
    done = subprocess.run(
        command_of(client),
        input=json.dumps({**given, "scenarios": cases}),
        capture_output=True,
        text=True,
        timeout=900,  # a real model beside other work
        env={**os.environ, "OPENAI_API_KEY": "unused", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)

    assert {name for name, outcome in found.items() if outcome is None} == NONE_OF[client]
    wrong = {}
    for name, outcome in found.items():
        # ChatOpenAI drops reasoning.
        unseen = {"reasoning"} if client == "langchain" else set()
        expected = {k: v for k, v in cases[name]["expect"].items() if k not in unseen}
        if outcome is not None and {key: outcome.get(key) for key in expected} != expected:
            wrong[name] = (outcome, expected)
    assert wrong == {}
    end_s = time.monotonic() + 60
    while zoo.num_running() and time.monotonic() < end_s:
        time.sleep(0.02)
    assert zoo.num_running() == 0, "a client that has left still has its request"


@pytest.mark.parametrize("client", ["openai", "curl"])
def test_client_that_is_there_anyway_understands_everything(tiny: Zoo, client: str) -> None:
    drive(client, tiny)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["anthropic", "langchain", "litellm", "openai_node"])
def test_client_understands_everything(tiny: Zoo, client: str) -> None:
    drive(client, tiny)


@pytest.mark.slow
@pytest.mark.parametrize("client", NONE_OF)
def test_client_understands_a_real_model(smollm2: Zoo, client: str) -> None:
    drive(client, smollm2)
