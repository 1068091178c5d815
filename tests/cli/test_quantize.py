"""``pyvt quantize``: the command around ``quantize_model``."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand
from tests.convert.tiny_source import write_source


def test_quantize_writes_the_file_and_says_what_it_holds(
    run_command: RunCommand, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "model")
    out = tmp_path / "out.gguf"

    result = run_command("quantize", str(source), str(out), "--type", "q4_k_m", "--json")

    assert result.code == 0, result.err
    facts = json.loads(result.out)
    assert facts["path"] == str(out)
    assert facts["types"] == {"q4_k": 13, "q6_k": 3, "f32": 9}
    assert facts["bytes"] < out.stat().st_size < facts["source_bytes"]


def test_quantize_text_names_sizes_and_types(run_command: RunCommand, tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")

    result = run_command("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "Q8_0")

    assert result.code == 0, result.err
    assert "25 tensors (16 q8_0, 9 f32)" in result.out


def test_quantize_unknown_type_is_bad_input(run_command: RunCommand, tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")

    result = run_command("quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q4")

    assert result.code == 2
    assert "valid names: BF16, F16" in result.err


def test_quantize_ended_by_sigterm_leaves_nothing(
    run_command: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "model")
    seen: list[list[str]] = []

    @contextmanager
    def loading(*_: object, verb: str) -> Iterator[Callable[[int, int], None]]:
        def terminate(done: int, total: int) -> None:
            seen.append([path.name for path in tmp_path.iterdir()])
            os.kill(os.getpid(), signal.SIGTERM)

        yield terminate

    monkeypatch.setattr("pyvt.cli.quantize.loading", loading)
    before = signal.getsignal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        run_command("quantize", str(source), str(tmp_path / "out.gguf"))

    assert end.value.code == 143
    assert any(name.endswith(".partial") for name in seen[0])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert signal.getsignal(signal.SIGTERM) is before
