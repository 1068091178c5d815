"""What the commands of ``pyvt bench`` share: their options of output, tables and run records."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pyvt.cli.bench_table import show_table
from pyvt.cli.terminal import say

json_option = click.option("--json", "is_json", is_flag=True, help="print the records as JSON")
out_option = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="folder for run records"
)


def tell(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    records: Sequence[tuple[str, Any]],
    out: Path | None,
    is_json: bool,
) -> None:
    """Print the table or the records, and write the records into a folder where one is given.

    What fell since the record that lay there is told.
    """
    if is_json:
        click.echo(f"[{','.join(record.to_json() for _, record in records)}]")
    else:
        show_table(heads, rows)
    if out is not None:
        write = testing_module("record").write_record
        for name, record in records:
            for fallen in write(out, name, record).fallen:
                say(f"{name}: fell: {fallen.name} from {fallen.before:.2f} to {fallen.now:.2f}")


def command_line() -> str:
    """Return the command that runs, as it was typed, but for the folders of absolute paths."""
    return shlex.join(["pyvt", *(Path(arg).name if _is_path(arg) else arg for arg in sys.argv[1:])])


def _is_path(arg: str) -> bool:
    return Path(arg).is_absolute()


def testing_module(name: str) -> Any:
    """Return a module of ``pyvt.testing``; only a run pays for its import."""
    return import_module(f"pyvt.testing.{name}")
