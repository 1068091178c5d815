from pathlib import Path
from typing import Any

import pytest

from pyvt.cli import parity
from pyvt.hub import fetch
from pyvt.testing.parity import DUMPERS
from tests.cli.conftest import RunCommand


class FakeRunner:
    """Keeps its calls; every run ends with exit code 1."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def run_parity(self, goldens: Path, *, print: Any, **settings: Any) -> int:
        print("1 of 2 goldens agree")
        self.calls.append((goldens, settings))
        return 1

    def trace_parity(
        self, model: str, prompt: str, a: str, b: str, goldens: Path, *, act: str, print: Any
    ) -> int:
        self.calls.append((model, prompt, a, b, act, goldens))
        return 1

    def dump_parity(self, python: str, what: tuple[str, ...], *, print: Any) -> int:
        self.calls.append((python, what))
        return 1


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    """Stands in for the modules that do the work."""
    fake = FakeRunner()
    monkeypatch.setattr(parity, "_testing", lambda module: fake)
    return fake


def test_parity_run_hands_its_options_on(run_command: RunCommand, runner: FakeRunner) -> None:
    result = run_command(
        *("parity", "run", "--goldens", "g", "-m", "m.gguf", "--real", "r"),
        *("--backend", "cpu", "--only", "norm", "--record", "out.json"),
    )

    assert (result.code, result.out) == (1, "1 of 2 goldens agree\n")
    settings = {"model": Path("m.gguf"), "real": Path("r"), "backend": "cpu", "only": "norm"}
    settings |= {"record": Path("out.json")}
    assert runner.calls == [(Path("g"), settings)]


def test_parity_trace_hands_its_options_on(
    run_command: RunCommand, runner: FakeRunner, model: str
) -> None:
    result = run_command(
        *("parity", "trace", model, "--a", "numpy", "--b", "cpu", "-p", "hello", "--act", "q8")
    )

    assert result.code == 1
    assert runner.calls == [(model, "hello", "numpy", "cpu", "q8", parity.GOLDENS)]


def test_parity_trace_takes_the_name_of_a_model(
    run_command: RunCommand, runner: FakeRunner, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "locate", lambda name: Path(model))

    run_command("parity", "trace", "smollm2-135m", "--b", "numpy")

    assert runner.calls[0][0] == model


def test_parity_trace_without_a_second_side_is_refused(
    run_command: RunCommand, runner: FakeRunner
) -> None:
    result = run_command("parity", "trace", "m")

    assert result.code == 2
    assert "--b" in result.err


def test_parity_dump_hands_its_options_on(run_command: RunCommand, runner: FakeRunner) -> None:
    result = run_command("parity", "dump", "--python", "p", "ops", "models")

    assert result.code == 1
    assert runner.calls == [("p", ("ops", "models"))]


def test_parity_dump_help_names_every_dumper(run_command: RunCommand) -> None:
    text = run_command("parity", "dump", "--help").out

    assert [name for name in DUMPERS if name not in text] == []
