"""GET /: the page for people, one file; and its texts, rendered from Markdown.

Raw HTML of a text stays text, links to scripts stay text, images are not loaded.
"""

import asyncio
import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from pyvt.server.fields import RequestModel, checked
from pyvt.server.state import state_of

_FILE = Path(__file__).with_name("page.html")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class MarkdownRequest(RequestModel):
    """POST /ui/markdown."""

    text: str


async def page(request: Request) -> Response:
    """Answer the page; it loads nothing from anywhere else."""
    html, policy = _page()
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return HTMLResponse(html, headers=headers)


async def markdown(request: Request) -> Response:
    """Answer the HTML of a text."""
    state = state_of(request)
    asked = checked(MarkdownRequest, await state.body(request))
    return JSONResponse({"html": await asyncio.to_thread(rendered, asked.text)})


@cache
def _page() -> tuple[str, str]:
    """Return the page and the policy that lets its own script run and no other."""
    html = _FILE.read_text(encoding="utf-8")
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in _SCRIPT.findall(html)
    ]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return html, policy


def rendered(text: str) -> str:
    """Return safe HTML of a text in Markdown, its code coloured."""
    return str(_markdown().render(text))


@cache
def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlighted})
    return parser.enable(["table", "strikethrough"]).disable(["image"])


def _highlighted(code: str, language: str, _: str) -> str:
    """Return the HTML of code, empty where nothing knows its language."""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))
