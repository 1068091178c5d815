import pytest

from pyvt.cli.terminal import safe_text


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
