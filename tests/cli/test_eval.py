"""``pyvt eval``: the commands around perplexity and divergence."""

import json
from pathlib import Path

import pytest

from pyvt.convert import quantize_model
from tests.cli.conftest import RunCommand
from tests.convert.tiny_source import write_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_source(tmp_path / "model")
    quantize_model(tmp_path / "model", tmp_path / "q4.gguf", "q4_0")
    (tmp_path / "text.txt").write_text("hello wo abc 12345 hell — naïve text, in words. " * 4)
    return tmp_path


def test_eval_commands_print_one_object(run_command: RunCommand, folder: Path) -> None:
    text, model, q4 = (str(folder / name) for name in ("text.txt", "model", "q4.gguf"))
    sizes = ("--window", "48", "--stride", "24", "--backend", "numpy", "--json")

    ppl = run_command("eval", "ppl", model, text, *sizes)
    kl = run_command("eval", "kl", q4, "--reference", model, text, *sizes)

    assert (ppl.code, kl.code) == (0, 0), ppl.err + kl.err
    facts, other = json.loads(ppl.out), json.loads(kl.out)
    assert facts["perplexity"] == pytest.approx(other["reference_perplexity"], rel=1e-4)
    assert facts["num_tokens"] == other["num_tokens"]
    assert other["mean_kl"] > 0


def test_eval_text_names_its_figures(run_command: RunCommand, folder: Path) -> None:
    text, model = str(folder / "text.txt"), str(folder / "model")

    ppl = run_command("eval", "ppl", model, text, "--window", "64")
    kl = run_command("eval", "kl", model, "--reference", model, text, "--window", "64")

    assert "window 64, stride 32" in ppl.out
    assert "same most likely token: 100.00%" in kl.out


def test_eval_refuses_a_file_that_is_no_text(run_command: RunCommand, folder: Path) -> None:
    result = run_command("eval", "ppl", str(folder / "model"), str(folder / "q4.gguf"))

    assert result.code == 2
    assert "expected a text file in UTF-8" in result.err


def test_eval_names_a_missing_file_once(run_command: RunCommand, folder: Path) -> None:
    missing = folder / "missing.txt"

    result = run_command("eval", "ppl", str(folder / "model"), str(missing))

    assert result.code == 2
    assert result.err.count("missing.txt") == 1
    assert "got No such file or directory" in result.err
