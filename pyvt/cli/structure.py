"""Options that say what the text of an answer must be."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from pyvt.cli.args import SEVERAL_TIMES
from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams

_OPTIONS = (
    click.option(
        "--json-schema",
        metavar="SCHEMA|@FILE",
        help="answer with JSON of this schema, given itself or as a file",
    ),
    click.option(
        "--grammar", metavar="@FILE", help="answer with a text of this GBNF/Lark grammar in a file"
    ),
    click.option("--regex", metavar="REGEX", help="answer with a text that this matches whole"),
    click.option(
        "--choice",
        metavar="TEXT",
        multiple=True,
        help=f"answer with one of these texts; {SEVERAL_TIMES}",
    ),
)


def structure_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of structured output."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def structure_of(options: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """Return what the options say that the text must be; None where none does.

    Raises:
        RequestError: two of the options were given, or a file cannot be read.
    """
    given: dict[str, Any] = {
        name: options[name] for name in ("regex", "choice") if options.get(name)
    }
    for name, kind in (("json_schema", "json"), ("grammar", "grammar")):
        if options.get(name):
            given[kind] = _text_of(f"--{name.replace('_', '-')}", options[name])
    return StructuredOutputsParams(**given) if given else None


def _text_of(flag: str, value: str) -> str:
    """Return a schema that was given itself, or what a file holds; the @ may be left out."""
    if flag == "--json-schema" and value.lstrip().startswith("{"):
        return value
    try:
        return Path(value.removeprefix("@")).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        kinds = "a JSON schema or a text file" if flag == "--json-schema" else "a text file"
        reason = error.strerror if isinstance(error, OSError) else "other bytes than UTF-8"
        raise RequestError(
            f"[generate] {flag}: expected {kinds}, got {value!r}: {reason}"
        ) from error
