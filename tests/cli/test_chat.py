import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click
import pytest

from pyvt.cli.chat import chat
from pyvt.cli.main import main
from pyvt.config.model import SamplingDefaults
from tests.cli.conftest import RunCommand
from tests.cli.fake_llm import FakeBuild

UseEngine = Callable[..., FakeBuild]


def test_chat_keeps_the_conversation(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["Hello.", "Ada."])

    result = run_command("chat", "-m", model, "-s", "Be kind", stdin=b"I am Ada\n\nWho am I?\n")

    assert (result.code, result.out) == (0, "Hello.\nAda.\n")
    assert build.prompts == [
        "[system:Be kind][user:I am Ada]",
        "[system:Be kind][user:I am Ada][assistant:Hello.][user:Who am I?]",
    ]


def test_chat_clear_forgets_and_system_replaces(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["1", "2", "3"])

    run_command("chat", "-m", model, stdin=b"a\n/clear\nb\n/system Be brief\nc\n")

    assert build.prompts == ["[user:a]", "[user:b]", "[system:Be brief][user:c]"]


def test_chat_exit_leaves_before_the_rest(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["1"])

    result = run_command("chat", "-m", model, stdin=b"/exit\na\n")

    assert (result.code, build.prompts) == (0, [])


def test_chat_help_and_unknown_commands_are_answered(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine()

    result = run_command("chat", "-m", model, stdin=b"/help\n/nonsense\n")

    assert "/clear" in result.err
    assert "no command '/nonsense'" in result.err
    assert build.prompts == []


@pytest.mark.parametrize("lines", [b"one\\\n", b'"""\none\n'])
def test_chat_message_that_goes_on_at_the_end_of_a_pipe_is_answered(
    run_command: RunCommand, use_engine: UseEngine, model: str, lines: bytes
) -> None:
    build = use_engine(["1"])

    result = run_command("chat", "-m", model, stdin=lines)

    assert (result.code, build.prompts) == (0, ["[user:one]"])


def test_chat_without_stdin_is_refused(
    use_engine: UseEngine, model: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    use_engine()
    monkeypatch.setattr(sys, "stdin", None)

    assert main(["chat", "-m", model]) == 2
    assert "stdin: expected it to be open, got a closed one" in capsys.readouterr().err


def test_chat_messages_of_several_lines(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["1", "2", "3"])
    lines = 'one\\\ntwo\n"""\nthree\n\nfour\n"""\n"""five"""\n'

    run_command("chat", "-m", model, stdin=lines.encode())

    assert [prompt.rpartition("[user:")[2] for prompt in build.prompts] == [
        "one\ntwo]",
        "three\n\nfour]",
        "five]",
    ]


def test_chat_ctrl_c_stops_the_answer_and_not_the_program(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["Paris is big.", "Yes."], interrupt_at=(5,))

    result = run_command("chat", "-m", model, stdin=b"a\nb\n")

    assert (result.code, result.out) == (0, "Paris\nYes.\n")
    assert "(stopped)" in result.err
    assert build.prompts[1] == "[user:a][assistant:Paris][user:b]"


def test_chat_ctrl_c_twice_forgets_the_message_and_goes_on(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["Paris is big.", "Yes."], interrupt_at=(5, 5))

    result = run_command("chat", "-m", model, stdin=b"a\nb\n")

    assert result.code == 0
    assert build.prompts == ["[user:a]", "[user:b]"]


def test_chat_message_that_does_not_fit_is_dropped(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    build = use_engine(["refused", "Yes."], max_model_len=60)

    result = run_command("chat", "-m", model, stdin=b"x" * 100 + b"\nshort\n")

    assert (result.code, result.out) == (1, "Yes.\n")
    assert "context of 60" in result.err
    assert build.prompts == ["[user:short]"]


def test_chat_answer_that_was_cut_says_so(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(["a long answer"])

    result = run_command("chat", "-m", model, "--max-tokens", "6", stdin=b"x\n")

    assert result.out == "a long\n"
    assert "cut" in result.err


def test_chat_with_a_model_without_a_template_is_refused(
    run_command: RunCommand, use_engine: UseEngine, model: str
) -> None:
    use_engine(has_template=False)

    result = run_command("chat", "-m", model, stdin=b"x\n")

    assert result.code == 2
    assert "pyvt generate --raw" in result.err


def test_chat_help_says_which_settings_the_model_has_a_word_in() -> None:
    options = {param.name: param for param in chat.params if isinstance(param, click.Option)}

    for field in fields(SamplingDefaults):
        assert "[default: the model's own, else " in str(options[field.name].help)
