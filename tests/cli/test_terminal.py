import sys

import pytest

from pyvt.cli.terminal import safe_text, write_text
from pyvt.errors import RequestError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\nünï 漢字 😀", "plain\ttext\nünï 漢字 😀"),
        ("line\r\nnext", "line\nnext"),
        ("\x1b[2J\x07\x00\x7f", "\ufffd[2J\ufffd\ufffd\ufffd"),
        ("\x9b31m", "\ufffd31m"),
    ],
)
def test_safe_text_cannot_steer_a_terminal(text: str, expected: str) -> None:
    assert safe_text(text) == expected


def test_text_for_a_closed_stdout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(RequestError, match="expected it to be open, got a closed one"):
        write_text("x")
