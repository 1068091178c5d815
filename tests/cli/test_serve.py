"""``pyvt serve``: what is printed at its start."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pyvt.cli.serve import curl_of
from pyvt.config.server import ServerConfig

URL = "http://127.0.0.1:8000"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("settings", "url", "words"),
    [
        ({}, URL, [f"{URL}/v1/chat/completions"]),
        # Unquoted brackets are a pattern to some shells.
        ({}, "http://[::1]:8000", ["http://[::1]:8000/v1/chat/completions"]),
        ({"api_key": ("secret",)}, URL, ["-H", "Authorization: Bearer KEY"]),
        ({"uds": "/tmp/a b"}, "unix:/tmp/a b", ["--unix-socket", "/tmp/a b"]),
    ],
)
def test_printed_curl_is_one_line_that_asks_for_a_short_answer(
    settings: dict[str, Any], url: str, words: list[str]
) -> None:
    line = curl_of(ServerConfig(**settings), url)

    found = shlex.split(line)
    assert "\n" not in line
    assert any(found[i : i + len(words)] == words for i in range(len(found)))
    assert "[" not in url or f"'{words[-1]}'" in line
    assert found[-4:-1] == ["-H", "Content-Type: application/json", "-d"]
    assert json.loads(found[-1]) == {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 64,
    }


@pytest.mark.parametrize("page", ["README.md", "docs/server.md"])
def test_pages_show_the_curl_that_is_printed(page: str) -> None:
    assert curl_of(ServerConfig(), URL) in (ROOT / page).read_text()
