import signal
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest

import pyvt
from pyvt.cli import main as cli_main
from pyvt.errors import (
    CheckpointError,
    ConfigError,
    DownloadError,
    EngineDeadError,
    KernelError,
    RequestError,
    UnsupportedError,
)


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make ``pyvt pull`` raise ``error``."""

    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cli_main, "import_module", lambda name: command)
    row = cli_main.CommandRow("module", "callback", "")
    monkeypatch.setitem(cli_main.COMMANDS, "fails", row)
    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *args: command)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("[a] b: c"), 2),
        (RequestError("[a] b: c"), 2),
        (CheckpointError("[a] b: c"), 2),
        (UnsupportedError("[a] b: c"), 2),
        (DownloadError("[a] b: c"), 1),
        (KernelError("[a] b: c"), 1),
        (EngineDeadError("[a] b: c"), 1),
        (ValueError("oops"), 1),
        (MemoryError(), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_main_error_is_one_line_and_a_code(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PYVT_LOG_LEVEL", raising=False)
    _raising(monkeypatch, error)

    result = cli_main.main(["fails"])

    out, err = capsys.readouterr()
    assert result == code
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(28, "No space left on device"), "[system] no space left on device"),
        (OSError(28, "No space left on device", "a"), "[file] 'a': no space left on device"),
    ],
)
def test_main_error_of_the_system_names_the_file_where_it_knows_one(
    error: OSError,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PYVT_LOG_LEVEL", raising=False)
    _raising(monkeypatch, error)

    assert cli_main.main(["fails"]) == 1
    assert f"error: {shown}; " in capsys.readouterr().err


def test_main_interrupt_is_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raising(monkeypatch, KeyboardInterrupt())

    assert cli_main.main(["fails"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"


def test_main_interrupt_while_a_command_is_imported_waits_for_the_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy's import turns a Ctrl-C into an ImportError."""
    imported = []

    def slow_import(name: str) -> object:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("numpy failed to import") from error
        imported.append(name)
        return SimpleNamespace(pull=None)

    monkeypatch.setattr(cli_main, "import_module", slow_import)
    before = signal.getsignal(signal.SIGINT)

    assert cli_main.main(["pull", "x"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"
    assert imported == ["pyvt.cli.pull"]
    assert signal.getsignal(signal.SIGINT) is before


def test_main_error_text_with_newlines_and_notes_stays_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = CheckpointError("[a] b:\n  c")
    error.add_note("while loading d")
    _raising(monkeypatch, error)

    cli_main.main(["fails"])

    assert capsys.readouterr().err == "error: [a] b: c (while loading d)\n"


def test_main_error_has_a_traceback_under_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYVT_LOG_LEVEL", "debug")
    _raising(monkeypatch, ValueError("oops"))

    cli_main.main(["fails"])

    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: ValueError: oops\n")


def test_main_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["--help"]) == 0

    out = capsys.readouterr().out
    assert [name for name in cli_main.COMMANDS if f"  {name} " in out] == list(cli_main.COMMANDS)


def test_main_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["--version"]) == 0
    assert capsys.readouterr().out.split()[-1] == pyvt.__version__


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["generat", "x"], "did you mean 'generate'"),
        (["pull", "--nonsense"], "try 'pyvt pull --help'"),
        (["pull", "a", "b"], "unexpected extra argument"),
    ],
)
def test_main_bad_usage_is_one_line_and_code_2(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main(args) == 2

    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert text in err


@pytest.mark.parametrize("args", [[], ["parity"]], ids=["pyvt", "parity"])
def test_main_without_a_command_shows_the_help(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main(args) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: pyvt")
    assert "\nCommands:\n" in err


@pytest.mark.parametrize("name", list(cli_main.COMMANDS))
def test_main_every_row_is_a_command_with_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main([name, "--help"]) == 0
    assert f"pyvt {name}" in capsys.readouterr().out


def test_main_reader_that_leaves_ends_quietly() -> None:
    script = (
        "import sys\n"
        "from pyvt.cli.main import main\n"
        "sys.stdin.readline()\n"
        "code = main(['--help'])\n"
        "sys.exit(code)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None

    _, err = process.communicate(b"go\n", timeout=60)

    assert err == b""
    assert process.returncode == 1


@pytest.mark.parametrize("words", ["generate", "chat", "serve", "batch", "bench latency"])
def test_main_commands_that_load_a_model_say_how_it_runs(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main([*words.split(), "--help"]) == 0

    text = capsys.readouterr().out
    for option in ("--max-model-len", "--kv-cache-dtype", "--memory-fraction", "--num-blocks"):
        assert option in text
    assert "--speculation [ngram|mtp]" in text
    assert "--num-speculative-tokens" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[config] cache.kv_cache_dtype: expected f32", "[config] --kv-cache-dtype: expected f32"),
        ("lower max_model_len, num_blocks=3", "lower --max-model-len, --num-blocks=3"),
        ("[fit] model: 'kv_cache_dtype' in quotes", "[fit] model: 'kv_cache_dtype' in quotes"),
        ("speculative.speculation: none", "--speculation: none"),
        ("an unknown_name and act", "an unknown_name and act"),
    ],
)
def test_main_errors_name_options_and_leave_the_rest(text: str, shown: str) -> None:
    flags = {
        **{
            "kv_cache_dtype": "--kv-cache-dtype",
            "max_model_len": "--max-model-len",
            "act": "--act",
        },
        **{"num_blocks": "--num-blocks", "speculation": "--speculation", "model": "--model"},
    }

    assert cli_main.as_options(text, flags) == shown
