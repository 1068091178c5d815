"""Drives the page of the server in Chromium; see ``test_page_in_a_browser``.

Comes in: url, key, the browser's path, a folder for pictures, and ids of the texts that the model
is made to write. Goes out: what was seen, by the part of the page.
"""

import json
import queue
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Route, sync_playwright

PATIENCE_MS = 60_000
CHAT = "**/v1/chat/completions"
METRICS = "**/metrics"


def until(is_so: Callable[[], bool]) -> None:
    """Wait; the page's policy lets no script of ours wait inside of it."""
    end_s = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        assert time.monotonic() < end_s, "the page does not show it"
        time.sleep(0.05)


class Fed(ThreadingHTTPServer):
    """A stream that goes on as it is told to, however fast the machine."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Feeding)
        self.chunks: queue.Queue[str] = queue.Queue()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Feeding(BaseHTTPRequestHandler):
    """One answer out of the chunks."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        assert isinstance(self.server, Fed)
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        chunk = ""
        while chunk != "[DONE]":
            chunk = self.server.chunks.get()
            self.wfile.write(f"data: {chunk}\n\n".encode())


class Driver:
    """One open page, and the bodies that it has sent.

    ``say`` names the text that the model writes next, as a client with a hook for tests would ask
    for it; everything else of a request is the page's own. Between ``begin_fed`` and ``end_fed``
    the answer is what ``feed`` gives.
    """

    def __init__(self, page: Page, given: dict[str, Any]) -> None:
        self.page = page
        self.given = given
        self.bodies: list[dict[str, Any]] = []
        self.say: str | None = None
        self.is_fed, self.num_tokens = False, 0
        self.fed = Fed()
        page.route(CHAT, self._pass_on)

    def _pass_on(self, route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        self.bodies.append(dict(body))
        if self.is_fed:
            route.continue_(url=self.fed.url)
            return
        if self.say is not None:
            body["forced_token_ids"] = self.given["ids"][self.say]
        else:
            body["ignore_eos"] = True
        route.continue_(post_data=json.dumps(body))

    def picture(self, name: str) -> None:
        self.page.screenshot(path=str(Path(self.given["pictures"]) / f"{name}.png"))

    def ask(self, text: str, say: str | None) -> None:
        """Send a message and wait for the whole answer."""
        self.begin(text, say)
        self.wait()

    def begin(self, text: str, say: str | None) -> None:
        self.say = say
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def begin_fed(self, text: str) -> None:
        self.is_fed, self.num_tokens = True, 0
        self.begin(text, None)

    def feed(self, **delta: Any) -> None:
        """Send a delta of ten tokens, and wait until its text is on the page."""
        self.num_tokens += 10
        usage = {"completion_tokens": self.num_tokens}
        self.feed_chunk({"choices": [{"index": 0, "delta": delta}], "usage": usage})
        text = str(delta.get("content") or delta.get("reasoning_content") or "").strip()[-20:]
        until(lambda: text in (self.page.locator("#log").text_content() or ""))

    def feed_chunk(self, chunk: dict[str, Any]) -> None:
        self.fed.chunks.put(json.dumps(chunk))

    def end_fed(self) -> None:
        self.fed.chunks.put("[DONE]")
        self.wait()
        self.is_fed = False

    def wait(self) -> None:
        self.page.wait_for_selector("#send:visible", timeout=PATIENCE_MS)

    def cards(self) -> list[str]:
        return self.page.locator("#log > article").all_inner_texts()

    def panel(self, *, is_open: bool) -> None:
        """Open or close the settings, as a person does."""
        if self.page.evaluate("document.querySelector('#panel').open") != is_open:
            self.page.click("#panel > summary")

    def settings(self, **fields: str) -> None:
        self.panel(is_open=True)
        for name, value in fields.items():
            if name == "thinking":
                self.page.select_option("#thinking", value)
            else:
                self.page.fill(f"#{name}", value)
                self.page.press(f"#{name}", "Tab")

    def num_running(self) -> float:
        url, key = self.given["url"], self.given["key"]
        request = urllib.request.Request(
            f"{url}/metrics", headers={"authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return float(
            next(x.split()[-1] for x in lines if x.startswith("pyvt:num_requests_running"))
        )


def key(driver: Driver) -> dict[str, Any]:
    """A key is asked for, kept in the tab alone, and used for everything."""
    page, seen = driver.page, {}
    page.goto(driver.given["url"])
    until(lambda: page.evaluate("document.querySelector('#panel').open"))
    driver.ask("Hello", "short")
    seen["is_told"] = "api key" in driver.cards()[-1]
    page.click("#new")
    driver.settings(key=driver.given["key"])
    until(lambda: "zoo-model" in page.inner_text("#model"))
    driver.ask("Hello", "short")
    seen["answer"] = "Paris." in driver.cards()[-1]
    page.reload()
    until(lambda: "zoo-model" in page.inner_text("#model"))
    seen["is_kept_in_the_tab"] = page.input_value("#key") == driver.given["key"]
    seen["is_not_kept_for_ever"] = page.evaluate("localStorage.getItem('key')") is None
    return seen


def markdown(driver: Driver) -> dict[str, Any]:
    """Markdown and code are rendered, what a model writes as HTML is text, reasoning is a fold."""
    page, seen = driver.page, {}
    page.click("#new")
    driver.panel(is_open=False)
    driver.ask("How do I turn a text around in Python?", "markdown")
    card = page.locator("#log > article").last
    until(lambda: card.locator("pre code").count() == 1)
    seen["has_list"] = card.locator("li").count()
    seen["has_bold"] = card.locator("strong").count()
    seen["has_colours"] = card.locator("pre span").count() > 2
    seen["has_no_element_of_the_model"] = card.locator("img").count() == 0
    fold = card.locator("details.part", has_text="Reasoning")
    seen["has_fold"] = fold.count()
    seen["is_folded"] = fold.get_attribute("open") is None
    fold.locator("summary").click()
    seen["reasoning"] = fold.locator("div").inner_text()
    driver.picture("page")
    return seen


def regenerate_and_edit(driver: Driver) -> dict[str, Any]:
    """Only the last answer is made again; an edit takes back what followed once it is sent."""
    page, seen = driver.page, {}
    page.click("#new")
    driver.ask("One", "short")
    driver.ask("Two", "other")
    seen["history"] = [m["role"] for m in driver.bodies[-1]["messages"]]
    seen["num_regenerate"] = page.get_by_role("button", name="Regenerate").count()
    driver.say = "short"
    page.get_by_role("button", name="Regenerate").click()
    driver.wait()
    until(lambda: "Paris." in driver.cards()[-1])
    seen["same_question"] = driver.bodies[-1]["messages"] == driver.bodies[-2]["messages"]
    seen["num_after_regenerate"] = len(driver.cards())
    edit = page.get_by_role("button", name="Edit").first
    page.fill("#input", "Half a")
    edit.click()
    seen["text_to_edit"] = page.input_value("#input")
    seen["num_while_edited"] = len(driver.cards())
    seen["is_told"] = "Sending replaces" in page.get_by_role("status").inner_text()
    page.keyboard.press("Escape")
    seen["text_after_escape"] = page.input_value("#input")
    edit.click()
    driver.ask("Three", "short")
    seen["sent_after_edit"] = [m["content"] for m in driver.bodies[-1]["messages"]]
    seen["num_after_edit"] = len(driver.cards())
    seen["text_after_edit"] = page.input_value("#input")
    return seen


def lines(name: str) -> str:
    """Return a text that is higher than the view, with a name at its end."""
    return "One more line.\n\n" * 60 + name


def links(driver: Driver) -> dict[str, Any]:
    """A link leaves the conversation where it is; so does a reload, even amid an answer."""
    page, seen = driver.page, {}
    page.click("#new")
    driver.ask("Where?", "link")
    link = page.get_by_role("link", name="the version")
    with page.context.expect_page() as opened:
        link.click()
    opened.value.wait_for_url("**/version")
    opened.value.close()
    seen["rel"] = link.get_attribute("rel")
    driver.begin_fed("And then?")
    driver.feed(content="Half an ")
    page.reload()
    driver.end_fed()
    until(lambda: len(driver.cards()) == 4)
    seen["is_link_after_reload"] = link.get_attribute("target")
    seen["is_stopped_after_reload"] = "Stopped." in driver.cards()[-1]
    driver.ask("Go on", "short")
    seen["sent_after_reload"] = [m["content"] for m in driver.bodies[-1]["messages"]]
    return seen


def follows(driver: Driver) -> dict[str, Any]:
    """The view follows the second answer too, unless a person has scrolled up."""
    page, seen = driver.page, {}

    def below() -> float:
        return float(
            page.evaluate(
                "(m => m.scrollHeight - m.scrollTop - m.clientHeight)"
                "(document.querySelector('main'))"
            )
        )

    page.click("#new")
    driver.ask("One", "markdown")
    driver.begin_fed("Two")
    driver.feed(content=lines("first"))
    seen["follows"] = below() < 2
    page.mouse.move(400, 300)
    page.mouse.wheel(0, -40)
    until(lambda: below() > 20)
    driver.feed(content=lines("second"))
    seen["stays_where_scrolled_to"] = below() > 500
    page.mouse.wheel(0, 100_000)
    until(lambda: below() < 2)
    driver.feed(content=lines("third"))
    seen["follows_again"] = below() < 2
    driver.end_fed()
    seen["is_at_end"] = below() < 2
    return seen


def folds(driver: Driver) -> dict[str, Any]:
    """What a person has opened or shut stays so while the answer grows, and keeps the focus."""
    page, seen = driver.page, {}
    fold = page.locator("#log > article").last.locator("details.part")

    def is_open() -> bool:
        return bool(fold.evaluate("fold => fold.open"))

    page.click("#new")
    driver.begin_fed("Think")
    driver.feed(reasoning_content="Well, ")
    seen["is_open_while_it_thinks"] = is_open()
    fold.locator("summary").click()
    driver.feed(reasoning_content="let me see.")
    seen["stays_shut"] = not is_open()
    driver.feed(content="An answer ")
    seen["is_shut"] = not is_open()
    fold.locator("summary").press("Enter")
    driver.feed(content="that grows.")
    seen["stays_open"] = is_open()
    driver.end_fed()
    seen["is_open_at_the_end"] = is_open()
    seen["has_focus"] = page.evaluate("document.activeElement.tagName") == "SUMMARY"
    return seen


def told(driver: Driver) -> list[str]:
    """What a screen reader hears of a second exchange: the text of what came into the log."""
    page = driver.page
    page.click("#new")
    driver.ask("One", "short")
    page.evaluate(
        """() => {
          window.heard = [];
          const region = (node) => {
            const around = (node.nodeType === 1 ? node : node.parentElement).closest("[aria-live]");
            return around && around.getAttribute("aria-live");
          };
          new MutationObserver((changes) => {
            const isNew = (node) => node.isConnected && region(node) === "polite";
            const nodes = new Set(changes.flatMap((change) =>
              change.type === "characterData" ? [change.target] : [...change.addedNodes]));
            const news = [...nodes].filter(isNew);
            const isWhole = (node) => !news.some((other) => other !== node && other.contains(node));
            heard.push(...news.filter(isWhole).map((node) => node.textContent));
          }).observe(document.querySelector("#log"),
            {childList: true, subtree: true, characterData: true});
        }"""
    )
    driver.ask("Two", "markdown")
    page.get_by_role("button", name="Regenerate").wait_for()
    return [str(text) for text in page.evaluate("window.heard")]


def settings(driver: Driver) -> dict[str, Any]:
    """The system prompt and every setting of sampling reach the server, and only those given."""
    page, seen = driver.page, {}
    page.click("#new")
    driver.ask("Hi", "short")
    seen["without"] = sorted(driver.bodies[-1])
    driver.settings(
        system="Be brief.", temperature="0.5", top_p="0.9", top_k="40", max_tokens="50", seed="7"
    )
    driver.settings(thinking="off")
    driver.ask("Hi", "closed")
    body = driver.bodies[-1]
    names = ("temperature", "top_p", "top_k", "max_tokens", "seed", "chat_template_kwargs")
    seen["with"] = {name: body[name] for name in names}
    seen["system"] = body["messages"][0]
    driver.picture("page-settings")
    driver.settings(system="", top_p="5")
    driver.ask("Hi", None)
    seen["refusal"] = driver.cards()[-1]
    driver.settings(temperature="", top_p="", top_k="", max_tokens="", seed="", thinking="")
    return seen


def facts(driver: Driver) -> dict[str, str]:
    """An answer tells its tokens, and its speed where there was one to measure."""
    page, seen = driver.page, {}
    page.click("#new")
    for name, words in (("at_once", ("Yes.",)), ("in_parts", ("Yes, ", "it is."))):
        driver.begin_fed("Is it?")
        for word in words:
            driver.feed(content=word)
        driver.end_fed()
        seen[name] = page.locator(".facts").last.inner_text()
    return seen


def failures(driver: Driver) -> dict[str, Any]:
    """What failed is asked again at a press, and is no part of what follows."""
    page, seen = driver.page, {}

    def sent() -> list[str]:
        return [m["content"] for m in driver.bodies[-1]["messages"]]

    page.click("#new")
    driver.settings(top_p="5")
    driver.ask("One", "short")
    driver.settings(top_p="")
    driver.ask("Two", "short")
    seen["after_a_refusal"] = sent()
    driver.begin_fed("Three")
    driver.feed(content="Half an")
    driver.feed_chunk({"error": {"message": "The rest is lost."}})
    driver.end_fed()
    seen["is_told"] = "The rest is lost." in driver.cards()[-1]
    driver.ask("Four", "short")
    seen["after_a_break"] = sent()
    driver.begin_fed("Five")
    driver.feed(reasoning_content="Hm.")
    page.locator("#stop").click()
    driver.end_fed()
    driver.say = "other"
    page.get_by_role("button", name="Retry").click()
    until(lambda: "Rome." in driver.cards()[-1])
    driver.wait()
    seen["retried"] = sent()
    return seen


def tools(driver: Driver) -> dict[str, Any]:
    """Calls are shown with name and arguments; tools that are no JSON are told of."""
    page, seen = driver.page, {}
    page.click("#new")
    driver.settings(tools=json.dumps([{"type": "function", "function": driver.given["tool"]}]))
    driver.ask("What is the weather in Paris and in Rome?", "calls")
    folds = page.locator("#log > article").last.locator("details.part")
    until(lambda: folds.count() == 2)
    seen["calls"] = [fold.inner_text() for fold in folds.all()]
    driver.panel(is_open=False)
    driver.picture("page-tools")
    driver.say = "short"
    paris, rome = (
        page.get_by_label(f'Result of get_weather {{"city": "{city}"}}')
        for city in ("Paris", "Rome")
    )
    paris.fill("It rains.")
    paris.press("Enter")
    rome.and_(page.locator(":focus")).fill("It is dry.")
    rome.press("Enter")
    until(lambda: len(driver.cards()) == 3)
    driver.wait()
    driver.ask("And tomorrow?", "short")
    seen["conversation"] = driver.bodies[-1]["messages"]
    seen["before"] = driver.bodies[-2]["messages"] == seen["conversation"][:4]
    driver.settings(tools="{")
    driver.ask("Hi", "short")
    seen["error"] = driver.cards()[-1]
    driver.settings(tools="")
    driver.panel(is_open=False)
    return seen


def stop(driver: Driver) -> dict[str, Any]:
    """Button and Escape end an answer that runs: its text stays, its request ends."""
    page, seen = driver.page, {}
    for way in ("button", "key"):
        page.click("#new")
        driver.begin("Go on", None)
        page.wait_for_selector("#stop:visible", timeout=PATIENCE_MS)
        until(lambda: [len(card) > 20 for card in driver.cards()[1:]] == [True])
        if way == "button":
            page.click("#stop")
        else:
            page.keyboard.press("Escape")
        driver.wait()
        seen[f"{way}_stopped"] = "Stopped." in driver.cards()[-1]
        until(lambda: driver.num_running() == 0)
    return seen


def gauges(driver: Driver) -> dict[str, Any]:
    """The state of the engine is live: requests of others show up while they run."""
    page, seen = driver.page, {}
    is_over = threading.Event()

    def load() -> None:
        body = {"prompt": "a", "max_tokens": 300, "ignore_eos": True}
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {driver.given['key']}",
        }
        while not is_over.is_set():
            request = urllib.request.Request(
                f"{driver.given['url']}/v1/completions", json.dumps(body).encode(), headers
            )
            urllib.request.urlopen(request, timeout=60).read()

    others = [threading.Thread(target=load) for _ in range(3)]
    for other in others:
        other.start()
    try:
        until(lambda: page.inner_text("#running") in ("1", "2", "3"))
        seen["running"] = int(page.inner_text("#running"))
        until(lambda: page.inner_text("#rate") not in ("–", "0"))
        seen["rate"] = int(page.inner_text("#rate"))
        until(lambda: page.inner_text("#ttft").endswith(" s"))
        seen["waiting"] = page.inner_text("#waiting").isdigit()
        seen["kv"] = page.inner_text("#kv").endswith("%")
        until(lambda: page.inner_text("#prefix").endswith("%"))
        seen["prefix"] = int(page.inner_text("#prefix").split()[0])
    finally:
        is_over.set()
        for other in others:
            other.join()
    until(lambda: page.inner_text("#running") == "0")
    return seen


def gauges_of_others(driver: Driver) -> dict[str, Any]:
    """A small share is not rounded away; nothing is told of a server that does not answer."""
    page = driver.page
    values = page.locator("dd")

    def kv(share: float) -> str:
        before = page.inner_text("#kv")
        text = f'pyvt:kv_cache_usage_perc{{model="m"}} {share}\n'
        page.route(METRICS, lambda route: route.fulfill(body=text))
        until(lambda: page.inner_text("#kv") != before)
        page.unroute(METRICS)
        return page.inner_text("#kv")

    seen: dict[str, Any] = {"kv": [kv(share) for share in (0.0123, 0.0001)]}
    page.route(METRICS, lambda route: route.abort())
    until(lambda: page.inner_text("#kv") == "–")
    seen["dead"] = sorted(set(values.all_inner_texts()))
    page.unroute(METRICS)
    until(lambda: page.inner_text("#running") == "0")
    return seen


def keyboard(driver: Driver) -> dict[str, Any]:
    """Everything without a mouse: a line break, send, and a button reached by Tab."""
    page, seen = driver.page, {}
    page.click("#new")
    page.reload()
    until(lambda: page.evaluate("document.activeElement.id") == "input")
    driver.say = "short"
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    until(lambda: len(driver.cards()) == 2)
    driver.wait()
    seen["lines"] = driver.bodies[-1]["messages"][0]["content"]
    seen["focus_is_back"] = page.evaluate("document.activeElement.id") == "input"
    reached = []
    for _ in range(12):
        page.keyboard.press("Shift+Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim()"))
        if reached[-1] == "Edit":
            break
    page.keyboard.press("Enter")
    seen["reached"] = reached[-1]
    seen["text_to_edit"] = page.input_value("#input")
    return seen


def screen_reader(driver: Driver) -> dict[str, Any]:
    """Everything has a role and a name; answers are told as they come."""
    page, seen = driver.page, {}
    seen["log"] = page.get_by_role("log", name="Conversation").get_attribute("aria-live")
    driver.panel(is_open=True)
    fields = ("Message", "System prompt", "API key", "Temperature", "Seed", "Thinking")
    seen["fields"] = [name for name in fields if page.get_by_label(name).count() == 1]
    buttons = page.get_by_role("button").all()
    seen["num_nameless"] = sum(
        not (b.inner_text().strip() and b.inner_text().strip() != "◐")
        and not b.get_attribute("aria-label")
        for b in buttons
        if b.is_visible()
    )
    seen["language"] = page.get_attribute("html", "lang")
    return seen


def looks(driver: Driver) -> dict[str, Any]:
    """Dark mode follows the system and the switch, and stays; a phone has no sideways scroll."""
    page, seen = driver.page, {}

    def back() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    driver.panel(is_open=False)
    light = back()
    page.emulate_media(color_scheme="dark")
    seen["follows_the_system"] = back() != light
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    dark = back()
    seen["is_darkened"] = dark != light
    page.reload()
    until(lambda: back() == dark)
    page.click("#new")
    driver.ask("How do I turn a text around in Python?", "markdown")
    until(lambda: page.locator("pre code").count() == 1)
    driver.picture("page-dark")
    page.click("#theme")
    page.set_viewport_size({"width": 390, "height": 800})
    sizes = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    width, room = page.evaluate(sizes)
    seen["fits_a_phone"] = width <= room
    driver.panel(is_open=True)
    width, room = page.evaluate(sizes)
    seen["settings_fit_a_phone"] = width <= room
    page.set_viewport_size({"width": 360, "height": 640})
    room = page.evaluate("document.querySelector('main').clientHeight")
    end = page.evaluate("document.querySelector('#form').getBoundingClientRect().bottom")
    seen["settings_leave_room_on_a_small_phone"] = room > 150 and end <= 640
    page.set_viewport_size({"width": 390, "height": 800})
    driver.panel(is_open=False)
    driver.picture("page-phone")
    page.set_viewport_size({"width": 1000, "height": 700})
    return seen


PARTS = (
    *(key, markdown, regenerate_and_edit, links, follows, folds, told, settings, facts, failures),
    *(tools, stop, gauges, gauges_of_others, keyboard, screen_reader, looks),
)


def main() -> None:
    given = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=given["browser"], args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 700})
        page.set_default_timeout(PATIENCE_MS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        driver = Driver(page, given)
        seen: dict[str, Any] = {part.__name__: part(driver) for part in PARTS}
        browser.close()
    seen["errors"] = errors
    seen["elsewhere"] = [url for url in asked if not url.startswith(given["url"])]
    json.dump(seen, sys.stdout)


main()
