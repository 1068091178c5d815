"""Faults between server and client: ends of streams, connections, hostile texts in odd places."""

import asyncio
import http.client
import json
import logging
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyvt import log
from pyvt.config.server import ServerConfig
from pyvt.server.run import listen
from tests.server.conftest import Serve
from tests.server.harness import HERMES, PATIENCE_S, PLAIN, SOON_S, Reply
from tests.server.test_run import on_loopback

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"
CHAT_ENDS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "sun"},
]


def _ends(reply: Reply) -> set[Any]:
    chunks = reply.data()
    return {c["finish_reason"] for chunk in chunks for c in chunk.get("choices") or ()} - {None}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "engine", "code"),
    [
        ({"timeout_s": 0.02}, {}, "deadline_exceeded"),
        ({}, {"failing": True}, "internal_error"),
        ({"max_tokens": 2}, {}, None),
        ({"stop": "x"}, {}, None),
    ],
)
def test_ends_are_words_of_the_api_and_failures_are_errors(
    serve: Serve, is_stream: bool, fields: dict[str, Any], engine: dict[str, Any], code: str | None
) -> None:
    settings: dict[str, Any] = {"before_step": lambda _: time.sleep(0.002)}
    server = serve(["y" * 200], clock=time.perf_counter, **settings)
    if engine:
        runner: Any = server.engine.core.runner
        runner.failing = {f"chatcmpl-{'a' * 8}"}

    reply = server.post(
        PATH,
        {**CHAT, "max_tokens": 300, "stream": is_stream, **fields},
        headers={"x-request-id": "a" * 8},
    )

    if is_stream:
        assert _ends(reply) <= CHAT_ENDS
        errors = [chunk["error"] for chunk in reply.data() if "error" in chunk]
    else:
        choices = reply.json().get("choices") or ()
        assert {choice["finish_reason"] for choice in choices} <= CHAT_ENDS
        errors = [reply.json()["error"]] if "error" in reply.json() else []
    assert [error["code"] for error in errors] == ([] if code is None else [code])
    assert reply.is_done == (is_stream and code is None)


@pytest.fixture
def debug_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes the log what it is in a process with PYVT_LOG_LEVEL=debug."""
    root = logging.getLogger("pyvt")
    before = (root.level, list(root.handlers))

    def start() -> None:
        monkeypatch.setenv("PYVT_LOG_LEVEL", "debug")
        root.handlers = []
        log._root.cache_clear()
        log.get_logger("pyvt.server")

    yield start
    level, root.handlers = before
    root.setLevel(level)


def test_debug_log_changes_no_prompt(serve: Serve, debug_log: Callable[[], None]) -> None:
    body = {"messages": HISTORY, "tools": [{"type": "function", "function": {"name": "f"}}]}
    plain = serve(template=HERMES).post(f"{PATH}/render", body).json()["prompt"]

    debug_log()
    assert logging.getLogger("pyvt.server.app").isEnabledFor(logging.DEBUG)
    told = serve(template=HERMES).post(f"{PATH}/render", body).json()["prompt"]

    assert told == plain
    assert '(f{"a": [1]})' in plain


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_would_take_all_time_or_memory_is_a_400_and_others_go_on(
    serve: Serve, template: str
) -> None:
    hostile, other = serve(template=template), serve(["Paris."])

    async def run() -> tuple[Reply, Reply, float]:
        start_s = time.monotonic()
        asked = asyncio.ensure_future(hostile.ask("POST", PATH, CHAT))
        answered = await other.ask("POST", PATH, {**CHAT, "max_tokens": 20})
        return await asked, answered, time.monotonic() - start_s

    refused, answered, spent_s = asyncio.run(run())

    assert refused.status == 400, refused.text
    assert answered.status == 200
    assert spent_s < PATIENCE_S
    assert hostile.get("/health").status == 200


@pytest.mark.parametrize(
    "text",
    ['"\n</tool_call>', "😀\u2028\x7f", "{% raw %}{{", "x" * 10_000, "\\u0000\\", "*/ %json"],
)
def test_descriptions_and_names_never_touch_the_grammar(serve: Serve, text: str) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False, "title": text}
    function = {"name": "f", "description": text, "parameters": schema}
    body = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "max_tokens": 120,
    }

    reply = serve(
        ['<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'],
        template=HERMES,
        max_model_len=30_000,
        num_blocks=9000,
    ).chat(**body)

    assert reply.status == 200, reply.text
    assert reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


@pytest.mark.parametrize("how", ["rst", "fin"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_connection_that_breaks_ends_its_request(serve: Serve, how: str, is_stream: bool) -> None:
    server = serve(["x" * 350], before_step=lambda _: time.sleep(0.005))
    body = json.dumps({**CHAT, "stream": is_stream, "max_tokens": 300}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )

    with on_loopback(server) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port)) as connection:
            if how == "rst":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(head.encode() + body)
            if is_stream:
                connection.recv(100)
            end_s = time.monotonic() + PATIENCE_S
            while not server.llm.num_unfinished_requests and time.monotonic() < end_s:
                time.sleep(0.002)
            assert server.llm.num_unfinished_requests == 1
        assert server.becomes_idle(SOON_S)

    assert server.engine.core.stats.num_finished["abort"] == 1
    assert server.metrics()['request_success_total{finished_reason="abort"}'] == 1


def test_requests_at_once_may_share_an_id(serve: Serve) -> None:
    server = serve(["x" * 350], before_step=lambda _: time.sleep(0.002))
    body = json.dumps({**CHAT, "max_tokens": 100})
    headers = {"x-request-id": "trace", "content-type": "application/json"}

    def post(host: str) -> tuple[int, str | None, str]:
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        connection.request("POST", PATH, body, headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        return reply.status, reply.getheader("x-request-id"), str(answer.get("id"))

    with on_loopback(server) as url, ThreadPoolExecutor() as pool:
        replies = list(pool.map(post, [urlsplit(url).netloc] * 3))

    assert {reply[:2] for reply in replies} == {(200, "trace")}
    assert len({number for _, _, number in replies}) == 3


@pytest.mark.slow
def test_connection_that_was_idle_is_used_again(serve: Serve) -> None:
    """Longer than the 5 s after which uvicorn would close it."""
    with on_loopback(serve()) as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=PATIENCE_S
        )
        for wait_s in (0, 7):
            time.sleep(wait_s)
            connection.request("GET", "/version")
            reply = connection.getresponse()
            assert reply.status == 200
            reply.read()
        connection.close()


def test_address_of_every_family_is_told_as_one_that_works(serve: Serve) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no sockets for both families")
    with on_loopback(serve(config={"host": "::"})) as url:
        port = urlsplit(url).port
        for host in (url, f"http://127.0.0.1:{port}", f"http://[::1]:{port}"):
            with urllib.request.urlopen(f"{host}/health", timeout=PATIENCE_S) as reply:
                assert json.load(reply) == {"status": "ok"}

    assert url == f"http://[::1]:{port}"


def test_address_of_this_machine_alone_is_of_one_family() -> None:
    with listen(ServerConfig(host="::1", port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_every_text_is_answered_beside_its_own_history(serve: Serve) -> None:
    """Answers of requests that run at once do not mix, whatever their lengths."""
    server = serve(template=PLAIN, max_model_len=600, num_blocks=900)

    async def one(number: int) -> tuple[str, str]:
        body = {"messages": [{"role": "user", "content": f"{number}" * (number + 1)}]}
        reply = await server.ask("POST", f"{PATH}/render", body)
        return reply.json()["prompt"], f"[user]{str(number) * (number + 1)}[assistant]"

    async def run() -> list[tuple[str, str]]:
        return list(await asyncio.gather(*(one(number) for number in range(30))))

    for found, expected in asyncio.run(run()):
        assert found == expected
