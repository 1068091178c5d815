"""The ``pyvt`` command: the table of subcommands, and how an error ends the process.

Exit codes: 0 done; 1 the run failed; 2 the user's input cannot be used (options, a name, a request,
a model file); 130 stopped by Ctrl-C. An error is one line on stderr; ``PYVT_LOG_LEVEL=debug`` shows
the traceback.
"""

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Any

import click

import pyvt
from pyvt import envs, other_names
from pyvt.cli.first_run import tell_build
from pyvt.errors import (
    CheckpointError,
    ConfigError,
    PyvtError,
    RequestError,
    UnsupportedError,
    did_you_mean,
)

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_QUOTED_OR_NAME = re.compile(
    r"'[^']*'|\b(?P<part>(?:cache|device|scheduler|server|speculative|structured_outputs)\.)?"
    r"(?P<name>\w+)\b"
)
BAD_INPUT = (ConfigError, RequestError, CheckpointError, UnsupportedError)


@dataclass(frozen=True, slots=True)
class CommandRow:
    """Where a subcommand is written, and its line in ``pyvt --help``."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "generate": CommandRow("pyvt.cli.generate", "generate", "Answer or complete one prompt."),
    "chat": CommandRow("pyvt.cli.chat", "chat", "Talk with a model in the terminal."),
    "serve": CommandRow("pyvt.cli.serve", "serve_command", "Serve a model over HTTP."),
    "batch": CommandRow("pyvt.cli.batch", "batch", "Answer a file of requests."),
    "pull": CommandRow("pyvt.cli.pull", "pull", "Fetch a model by name."),
    "list": CommandRow("pyvt.cli.local", "list_command", "Show the models that were pulled."),
    "rm": CommandRow("pyvt.cli.local", "remove_command", "Remove models that were pulled."),
    "inspect": CommandRow("pyvt.cli.inspect", "inspect", "Show what a model file holds."),
    "fit": CommandRow("pyvt.cli.fit", "fit", "Show what a model would take of the memory."),
    "quantize": CommandRow(
        "pyvt.cli.quantize", "quantize", "Write a model as a smaller GGUF file."
    ),
    "eval": CommandRow("pyvt.cli.eval", "evaluate", "Perplexity and KL divergence on a text."),
    "parity": CommandRow("pyvt.cli.parity", "parity", "Check results against other engines."),
    "doctor": CommandRow("pyvt.cli.doctor", "doctor", "Show the machine and test the kernels."),
    "bench": CommandRow("pyvt.cli.bench", "bench", "Measure speed, alone and beside others."),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when one is run; ``--help`` reads the table only."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        row = COMMANDS.get(cmd_name)
        if row is None:
            hint = other_names.COMMANDS.get(cmd_name) or did_you_mean(cmd_name, COMMANDS)
            raise click.UsageError(f"no command {cmd_name!r}; {hint}")
        with _interrupt_deferred():
            command: click.Command = getattr(import_module(row.module), row.attribute)
        if isinstance(ctx.obj, dict):
            ctx.obj.update(_flags_of(command))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Hold a Ctrl-C back until the block ends: NumPy, interrupted in its import, hides it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    frames: list[FrameType | None] = []
    before = signal.signal(signal.SIGINT, lambda _, frame: frames.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if frames:
        raise KeyboardInterrupt


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: pyvt generate 'Why is the sky blue?'",
)
@click.version_option(pyvt.__version__, prog_name="pyvt")
def cli() -> None:
    """A small, exact and fast LLM inference engine for the Qwen3 and Llama families."""
    tell_build()


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; ``pyvt/__main__.py`` is the script."""
    flags: dict[str, str] = {}
    try:
        result: Any = cli.main(args=args, prog_name="pyvt", standalone_mode=False, obj=flags)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"; try '{context.command_path} --help'" if context else ""
        typed = sys.argv[1:] if args is None else args
        return _end(error.exit_code, _message_of(error, typed) + hint)
    except (KeyboardInterrupt, click.Abort):
        return _end(EXIT_INTERRUPTED, "interrupted")
    except BrokenPipeError:
        # The reader has left (`pyvt … | head`): stdout must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except PyvtError as error:
        code = EXIT_BAD_INPUT if isinstance(error, BAD_INPUT) else EXIT_FAILED
        return _end(code, as_options(str(error), flags), error)
    except OSError as error:
        if error.strerror is None:
            return _end(EXIT_FAILED, f"{type(error).__name__}: {error}", error)
        # A write through an open file, such as stdout on a full disk, knows no name.
        where = "[system]" if error.filename is None else f"[file] {str(error.filename)!r}:"
        return _end(EXIT_FAILED, f"{where} {error.strerror.lower()}", error)
    except MemoryError as error:
        return _end(EXIT_FAILED, f"out of memory: {error or 'no more could be had'}", error)
    except Exception as error:
        return _end(EXIT_FAILED, f"{type(error).__name__}: {error}", error)
    return result if isinstance(result, int) else 0


def _message_of(error: click.ClickException, typed: Sequence[str]) -> str:
    """Return the text of a wrong command line, with a hint for the options of other engines."""
    if isinstance(error, click.NoSuchOption):
        # Click reads -tp as -t and -p, and tells of the first.
        likely = [word for word in typed if word.startswith(error.option_name)]
        for name in (*likely, error.option_name):
            known = other_names.hint_for_option(name)
            if known is not None:
                return f"no such option {name!r}: {known}"
    return error.format_message().rstrip(".")


def _flags_of(command: click.Command) -> dict[str, str]:
    """Return the flag of each option of a command, and of the commands in it, by its setting."""
    flags: dict[str, str] = {}
    for inner in getattr(command, "commands", {}).values():
        flags |= _flags_of(inner)
    return flags | {p.name: p.opts[-1] for p in command.params if p.name and p.opts[-1][0] == "-"}


def as_options(text: str, flags: dict[str, str]) -> str:
    """Return the text of an error with settings called by their options.

    Only names that are no plain words, such as ``max_model_len`` and ``device.act``, and nothing in
    quotes, which is the user's.
    """

    def named(found: re.Match[str]) -> str:
        is_name = found["part"] or "_" in (found["name"] or "")
        return flags.get(found["name"], found[0]) if is_name else found[0]

    return _QUOTED_OR_NAME.sub(named, text)


def _end(code: int, text: str, error: BaseException | None = None) -> int:
    """Write the error in one line, with notes and traceback where they were asked for."""
    is_debug = envs.PYVT_LOG_LEVEL.get().lower() == "debug"
    if is_debug and error is not None:
        traceback.print_exception(error, file=sys.stderr)
    if error is not None and not isinstance(error, PyvtError) and not is_debug:
        text += "; PYVT_LOG_LEVEL=debug shows where"
    notes = [f" ({note})" for note in getattr(error, "__notes__", ())]
    click.echo(f"error: {' '.join(text.split())}{''.join(notes)}", err=True)
    return code
