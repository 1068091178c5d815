"""What ``pyvt generate`` makes of the options of structured output."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand
from tests.cli.fake_llm import FakeBuild

UseEngine = Callable[..., FakeBuild]


@pytest.mark.parametrize(
    ("flag", "text", "kind", "value"),
    [
        ("--json-schema", '{"type": "integer"}', "json", '{"type": "integer"}'),
        ("--grammar", 'root ::= "a"', "grammar", 'root ::= "a"'),
    ],
)
def test_generate_reads_what_the_text_must_be_from_a_file(
    flag: str,
    text: str,
    kind: str,
    value: str,
    tmp_path: Path,
    run_command: RunCommand,
    use_engine: UseEngine,
    model: str,
) -> None:
    build = use_engine()
    path = tmp_path / "spec"
    path.write_text(text)

    for given in (str(path), f"@{path}"):
        result = run_command("generate", "-m", model, flag, given, "x")

        assert result.code == 0, result.err
        assert getattr(build.params[-1].structured_outputs, kind) == value


@pytest.mark.parametrize(
    ("args", "kind", "value"),
    [
        (["--regex", "[a-z]+"], "regex", "[a-z]+"),
        (["--json-schema", ' {"type": "null"}'], "json", '{"type": "null"}'),
        (["--choice", "yes", "--choice", "no"], "choice", ("yes", "no")),
    ],
)
def test_generate_takes_what_the_text_must_be(
    args: list[str],
    kind: str,
    value: object,
    run_command: RunCommand,
    use_engine: UseEngine,
    model: str,
) -> None:
    build = use_engine()

    result = run_command("generate", "-m", model, *args, "x")

    assert result.code == 0
    assert getattr(build.params[0].structured_outputs, kind) == value


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--regex", "a", "--choice", "b"], "expected one of json, "),
        (["--regex", "(?=b)"], r"got '\(\?=b\)': look-around"),
        (
            ["--json-schema", "no/such/file"],
            "--json-schema: expected a JSON schema or a text file, got 'no/such/file': No such",
        ),
        (["--grammar", 'root ::= "a"'], "--grammar: expected a text file, got 'root ::= "),
        (["--regex", "a{300}"], "needs at least 300 tokens, got --max-tokens=256"),
    ],
)
def test_generate_refuses_what_no_text_can_be(
    args: list[str], words: str, run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(max_model_len=400)

    result = run_command("generate", "-m", model, *args, "x")

    assert result.code != 0
    assert re.search(words, result.err)
