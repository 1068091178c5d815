"""What a terminal is shown: text of models and files without control characters, and progress."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from pyvt.errors import RequestError

# Most bytes or characters of a prompt from a pipe; the longest contexts hold a tenth of it.
MAX_INPUT = 8 << 20

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def safe_text(text: str) -> str:
    """Return text that cannot steer a terminal: controls but tab and newline become U+FFFD.

    A carriage return is dropped: it stands before newlines in text of many models.
    """
    return _CONTROLS.sub("\ufffd", text.replace("\r", ""))


def say(line: str) -> None:
    """Write a line to stderr."""
    click.echo(safe_text(line), err=True)


def write_text(text: str) -> None:
    """Write a piece of an answer to stdout at once: as it is into a pipe, safe on a terminal."""
    if sys.stdout is None:
        raise RequestError("[stdout] expected it to be open, got a closed one")
    sys.stdout.write(safe_text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


@contextmanager
def loading(name: str, verb: str = "loading") -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar of bytes on stderr, of a model's load by default; None where it is no terminal.

    What is yielded takes the bytes that are done and the bytes there are.
    """
    if not sys.stderr.isatty():
        yield None
        return
    # Only a run on a terminal pays for rich.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.fields[verb]} {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(safe_text(name), total=None, verb=verb)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr that counts; what is yielded takes the number that is done.

    Where stderr is no terminal there is no bar.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
