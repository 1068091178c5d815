from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

from pyvt.cli.args import field_options, given


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One field of each kind."""

    count: int = field(default=3, metadata={"help": "how many"})
    share: float = 0.5
    limit: int | Literal["auto"] = "auto"
    size: int = field(default=16, metadata={"choices": (8, 16)})
    words: str | Sequence[str] = ()
    seed: int | None = None
    is_on: bool = False
    is_used: bool = True


NAMES = ("count", "share", "limit", "size", "words", "seed", "is_on", "is_used")


def _run(args: list[str]) -> tuple[int, str, dict[str, Any]]:
    seen: dict[str, Any] = {}

    @click.command()
    @field_options(Settings, NAMES, flags={"seed": "--start"}, defaults={"count": 7})
    def command(**options: Any) -> None:
        seen.update(given(options, NAMES))

    result = CliRunner().invoke(command, args)
    return result.exit_code, result.output, seen


def test_options_not_given_are_left_out() -> None:
    assert _run([]) == (0, "", {})


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--count", "0"], {"count": 0}),
        (["--share", "0.25"], {"share": 0.25}),
        (["--limit", "auto"], {"limit": "auto"}),
        (["--limit", "12"], {"limit": 12}),
        (["--size", "8"], {"size": 8}),
        (["--words", "a", "--words", "b"], {"words": ("a", "b")}),
        (["--start", "5"], {"seed": 5}),
        (["--is-on"], {"is_on": True}),
        (["--no-is-on"], {"is_on": False}),
        (["--no-is-used"], {"is_used": False}),
        (["--is-used"], {"is_used": True}),
    ],
)
def test_options_have_the_type_of_their_field(args: list[str], expected: dict[str, Any]) -> None:
    code, _, seen = _run(args)

    assert code == 0
    assert seen == expected
    assert [type(value) for value in seen.values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize("args", [["--limit", "many"], ["--size", "9"], ["--count", "1.5"]])
def test_options_of_a_wrong_type_are_refused(args: list[str]) -> None:
    assert _run(args)[0] == 2


def test_options_show_help_and_the_default_of_the_command() -> None:
    output = _run(["--help"])[1]

    assert "how many" in output
    assert "[default: 7]" in output
    assert "[default: auto]" in output
    assert "[8|16]" in output
    assert output.count("may be given several times") == 1
