"""The command as a process of its own, on a tiny model: pipes, signals and a terminal."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.tiny_files import write_talker
from tests.engine.tiny_model import write_tiny_model

PYVT = (sys.executable, "-m", "pyvt")
LONG = ("--raw", "--ignore-eos", "--max-tokens", "480")
PATIENCE_S = 60
IN_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from pyvt.__main__ import run; run()"
)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> str:
    """The folder of a tiny Qwen3 that talks nonsense."""
    return str(write_talker(tmp_path_factory.mktemp("talker"), qwen3_tokenizer_dir))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model whose tokens are bytes, which loads at once."""
    folder = tmp_path_factory.mktemp("bytes")
    return str(write_tiny_model(folder, max_position_embeddings=512))


@dataclass
class Terminal:
    """A process behind a terminal, and everything it has shown."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: str = ""
    seen: int = 0

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.descriptor, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until ``text`` was shown after what was waited for before."""
        while (found := self.shown.find(text, self.seen)) < 0:
            ready, _, _ = select.select([self.descriptor], [], [], PATIENCE_S)
            assert ready, f"expected {text!r} on the terminal, got {self.shown!r}"
            self.shown += os.read(self.descriptor, 4096).decode(errors="replace")
        self.seen = found + len(text)

    def read_to_end(self) -> None:
        """Read until the process closes the terminal, which ends with EIO on Linux."""
        with contextlib.suppress(OSError):
            while data := os.read(self.descriptor, 4096):
                self.shown += data.decode(errors="replace")


@pytest.fixture
def chat_terminal(talker: str, repo: Path, tmp_path: Path) -> Iterator[Terminal]:
    """``pyvt chat`` in a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, "chat", "-m", talker, "--temperature", "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=repo,
        env=os.environ | {"PYVT_HOME": str(tmp_path), "TERM": "xterm", "INPUTRC": "/dev/null"},
        start_new_session=True,
    )
    os.close(theirs)
    yield Terminal(process, ours)
    process.kill()
    process.wait()
    os.close(ours)


def test_generate_json_in_a_process(model: str, repo: Path) -> None:
    command = [*PYVT, "generate", "-m", model, "--max-tokens", "3", "--ignore-eos", "--json"]

    done = subprocess.run([*command], input=b"Hello\n", capture_output=True, cwd=repo, check=True)

    facts = json.loads(done.stdout)
    assert done.stderr == b""
    assert (len(facts["token_ids"]), facts["finish_reason"]) == (3, "length")
    assert facts["metrics"]["decode_tokens_per_s"] > 0


def test_generate_ctrl_c_in_a_process(model: str, repo: Path) -> None:
    with subprocess.Popen(
        [*PYVT, "generate", "-m", model, *LONG, "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=repo,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert b"finish_reason=abort" in err
    assert b"Traceback" not in err


# Presses Ctrl-C when the command line's own modules are first imported.
EARLY = """
import os, signal, sys
module = sys.argv.pop()
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from pyvt.__main__ import run
run()
"""


@pytest.mark.parametrize("module", ["pyvt.cli.main", "click", "pyvt.errors"])
def test_ctrl_c_while_the_command_line_is_imported_ends_with_130(module: str, repo: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EARLY, module], capture_output=True, cwd=repo)

    assert (done.returncode, done.stderr) == (130, b"error: interrupted\n")


def test_generate_endless_input_is_refused(model: str, repo: Path) -> None:
    with Path("/dev/zero").open("rb") as zero:
        done = subprocess.run(
            [*PYVT, "generate", "-m", model], stdin=zero, capture_output=True, cwd=repo
        )

    assert done.returncode == 2
    assert b"stdin: expected at most 8 MiB, got more" in done.stderr


def test_generate_reader_that_leaves_in_a_process(model: str, repo: Path) -> None:
    with subprocess.Popen(
        [*PYVT, "generate", "-m", model, *LONG, "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=repo,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)

    assert (process.returncode, err) == (1, b"")


def test_chat_in_a_terminal_outlives_ctrl_c(chat_terminal: Terminal, tmp_path: Path) -> None:
    chat_terminal.wait_for(">>> ")
    chat_terminal.type("hello\n")
    chat_terminal.wait_for("hello\r\n")
    chat_terminal.wait_for(" ")
    chat_terminal.type("\x03")
    chat_terminal.wait_for("(stopped)")
    chat_terminal.wait_for(">>> ")
    chat_terminal.type("/clear\n")
    chat_terminal.wait_for("(cleared)")
    chat_terminal.wait_for(">>> ")
    chat_terminal.type("\x04")
    chat_terminal.read_to_end()

    assert chat_terminal.process.wait(timeout=60) == 0
    assert "Traceback" not in chat_terminal.shown
    assert (tmp_path / "chat_history").read_text().splitlines() == ["hello", "/clear"]


def batch_answers(target: Path) -> dict[str, str]:
    """Return the texts by custom_id; every line is whole and none comes twice."""
    found = [json.loads(text) for text in target.read_text().splitlines()]
    names = [line["custom_id"] for line in found]
    assert len(set(names)) == len(names), names
    texts = [line["response"]["body"]["choices"][0]["text"] for line in found]
    return dict(zip(names, texts, strict=True))


def test_batch_that_is_killed_goes_on_without_losing_or_repeating_a_line(
    model: str, repo: Path, tmp_path: Path
) -> None:
    """Each request is there twice, far apart, so answers of both runs can be compared."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    body = {"prompt": "abc", "max_tokens": 48, "ignore_eos": True, "temperature": 1.0}
    lines = [
        {"custom_id": f"{n}", "url": "/v1/completions", "body": body | {"seed": n % 30}}
        for n in range(60)
    ]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = (*PYVT, "batch", str(source), str(target), "-m", model, "--max-num-seqs", "2")

    with subprocess.Popen(command, cwd=repo, stderr=subprocess.DEVNULL) as process:
        end_s = time.monotonic() + 4 * PATIENCE_S
        while not target.exists() or target.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < end_s, "no line came"
            time.sleep(0.005)
        process.kill()
    num_before = target.read_bytes().count(b"\n")
    # A crash may leave a part of a line behind.
    with target.open("ab") as answers:
        answers.write(b'{"id": "batch_req_1')
    again = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)

    assert 3 <= num_before < len(lines)
    assert f"done={len(lines) - num_before} failed=0 before={num_before} " in again.stderr
    texts = batch_answers(target)
    assert texts.keys() == {line["custom_id"] for line in lines}
    assert [texts[f"{n}"] for n in range(30)] == [texts[f"{n + 30}"] for n in range(30)]
    assert len(set(texts.values())) == 30
