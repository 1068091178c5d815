"""Commands over a fake engine, so that no model is needed."""

import io
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyvt.cli import session
from pyvt.cli.main import main
from tests.cli.fake_llm import FakeBuild


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., Result]


@pytest.fixture
def use_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeBuild]]:
    """Gives commands a fake engine; takes the arguments of ``FakeBuild``."""
    install, before = signal.signal, signal.getsignal(signal.SIGINT)

    def use(*args: Any, **settings: Any) -> FakeBuild:
        build = FakeBuild(*args, **settings)
        monkeypatch.setattr(session, "build_engine", build)
        monkeypatch.setattr(
            signal, "signal", lambda n, handler: install(n, build.counting(handler))
        )
        return build

    yield use
    install(signal.SIGINT, before)


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Runs a command line; ``stdin`` is what is piped in."""

    def run(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(list(args))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a model that only a fake engine can open."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    return str(path)
