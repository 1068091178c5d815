"""What the commands of ``pyvt bench`` share: their options of output, tables and run records."""

import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from pyvt.cli.bench_table import show_table

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
    """Print the table or the records, and write the records into a folder where one is given."""
    if is_json:
        click.echo(f"[{','.join(record.to_json() for _, record in records)}]")
    else:
        show_table(heads, rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, record in records:
            (out / f"{name}.json").write_text(record.to_json() + "\n")


def command_line() -> str:
    """Return the command that runs, as it was typed, but for the folders of absolute paths."""
    return shlex.join(["pyvt", *(Path(arg).name if _is_path(arg) else arg for arg in sys.argv[1:])])


def _is_path(arg: str) -> bool:
    return Path(arg).is_absolute()


def testing_module(name: str) -> Any:
    """Return a module of ``pyvt.testing``; only a run pays for its import."""
    return import_module(f"pyvt.testing.{name}")
