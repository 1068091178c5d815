"""The page: one file that loads nothing, and its Markdown, which can do no harm."""

import base64
import hashlib
import re

import pytest

from pyvt.server.page import rendered
from tests.server.conftest import Serve


def test_page_is_public_and_runs_its_own_script_alone(serve: Serve) -> None:
    reply = serve(config={"api_key": ("k",)}).get("/")

    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    policy = reply.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", reply.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_page_names_no_other_place(serve: Serve) -> None:
    text = serve().get("/").text

    assert re.findall(r"(?:https?:)?//[\w.]+", text) == []
    assert re.findall(r"\son\w+=", text) == []


def test_every_control_of_the_page_has_a_name(serve: Serve) -> None:
    text = serve().get("/").text

    for control in re.findall(r"<(?:textarea|input|select)[^>]*>", text):
        before = text[: text.index(control)]
        is_in_label = before.rfind("<label") > before.rfind("</label>")
        assert is_in_label or "aria-label=" in control, control
    assert 'lang="en"' in text
    assert 'aria-live="polite"' in text


def test_script_asks_only_for_paths_that_exist(serve: Serve) -> None:
    server = serve()
    paths = re.findall(r'fetch\("([^"]+)"', server.get("/").text)

    assert sorted(set(paths)) == ["metrics", "ui/markdown", "v1/chat/completions", "v1/models"]
    assert server.post("/ui/markdown", {"text": "**a**"}).json() == {
        "html": "<p><strong>a</strong></p>\n"
    }


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '<img src=x onerror="alert(1)">',
        "[a](javascript:alert(1))",
        "![a](http://evil.example/x.png)",
        "```<b onload=x>\ncode\n```",
        "[a](data:text/html,<script>)",
        "`</code><script>`",
    ],
)
def test_markdown_lets_nothing_through(text: str) -> None:
    html = rendered(text)

    assert "<script" not in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert 'href="data' not in html
    assert not re.search(r"<[^>]*\son\w+=", html.replace("&quot;", ""))


def test_markdown_colours_code_and_draws_tables() -> None:
    html = rendered("```python\ndef f(): pass\n```\n\n|a|\n|-|\n|1|\n")

    assert '<span class="k">def</span>' in html
    assert "<table>" in html
    assert "<code" in rendered("```nonsense\nx < y\n```")
