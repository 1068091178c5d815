"""Drives the page of the server in Chromium; see ``test_page_in_a_browser``.

Comes in: url, key, the browser's path and a folder for pictures. Goes out: what was seen.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

PATIENCE_MS = 60_000


def until(is_so: Callable[[], bool]) -> None:
    """Wait; the page's policy lets no script of ours wait inside of it."""
    end_s = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        assert time.monotonic() < end_s, "the page does not show it"
        time.sleep(0.05)


def log_text(page: Page) -> str:
    return page.inner_text("#log")


def ask(page: Page, text: str) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")
    page.wait_for_selector("#send:visible", timeout=PATIENCE_MS)


def drive(page: Page, given: dict[str, Any]) -> dict[str, Any]:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    seen: dict[str, Any] = {}
    page.goto(given["url"])
    page.evaluate("document.querySelector('#panel').open = true")
    page.fill("#key", given["key"])
    page.fill("#max_tokens", "24")
    page.fill("#temperature", "0")
    page.press("#key", "Tab")
    ask(page, "Hello **there**")
    until(lambda: page.locator("#log > *").count() >= 2)
    seen["has_question"] = "there" in log_text(page)
    seen["num_shown"] = page.locator("#log > *").count()
    until(lambda: page.inner_text("#running") != "–")
    seen["gauge"] = page.inner_text("#running")
    seen["model"] = page.inner_text("#model")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    seen["is_darkened"] = page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.screenshot(path=str(Path(given["pictures"]) / "page.png"))
    page.set_viewport_size({"width": 390, "height": 800})
    seen["fits_a_phone"] = page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    page.screenshot(path=str(Path(given["pictures"]) / "phone.png"))
    # Stop, by the keyboard alone, an answer that does not come.
    page.route("**/v1/chat/completions", lambda route: None)
    page.fill("#input", "Go on")
    page.press("#input", "Enter")
    page.wait_for_selector("#stop:visible", timeout=PATIENCE_MS)
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible", timeout=PATIENCE_MS)
    seen["is_stopped"] = True
    page.click("#new")
    seen["is_new"] = "there" not in log_text(page)
    seen["errors"] = errors
    seen["elsewhere"] = [url for url in asked if not url.startswith(given["url"])]
    return seen


def main() -> None:
    given = json.load(sys.stdin)
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=given["browser"], args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 700})
        page.set_default_timeout(PATIENCE_MS)
        seen = drive(page, given)
        browser.close()
    json.dump(seen, sys.stdout)


main()
