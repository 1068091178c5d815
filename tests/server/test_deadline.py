"""The deadline counts from the head of a request, whatever it waits for: 504, or an event."""

import asyncio
import json
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.server.conftest import Serve
from tests.server.harness import PATIENCE_S, Reply
from tests.server.test_connection import BODY, post, talk, told
from tests.server.test_run import on_loopback
from tests.server.test_sleep import Loads, asleep, run

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
EXPIRED = (504, "deadline_exceeded")


def code_of(reply: Reply) -> tuple[int, Any]:
    return reply.status, reply.json()["error"]["code"]


def test_body_that_does_not_come_before_the_deadline_is_a_504(serve: Serve) -> None:
    settings = {"request_timeout_s": 0.1, "stall_timeout_s": 3.0}
    with on_loopback(serve(config=settings)) as url:
        answer = talk(url, post(BODY)[:-5], is_over=lambda answer: answer.endswith(b"}\n"))
        status, error = told(answer)

    assert (status, error["error"]["code"]) == EXPIRED


def test_time_in_which_the_body_comes_counts(serve: Serve) -> None:
    server = serve(clock=time.perf_counter)
    body = json.dumps({**CHAT, "timeout_s": 0.2}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    with on_loopback(server) as url:
        parts = urlsplit(url)
        address = (parts.hostname, parts.port)
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode())
            time.sleep(0.4)
            connection.sendall(body)
            answer = b""
            while not answer.endswith(b"}\n"):
                answer += connection.recv(1 << 16)

    status, error = told(answer)
    assert (status, error["error"]["code"]) == EXPIRED


@pytest.mark.parametrize("path", [PATH, f"{PATH}/render", "/tokenize"])
def test_time_in_which_a_chat_waits_to_be_rendered_counts(serve: Serve, path: str) -> None:
    server = serve(config={"request_timeout_s": 0.1})
    release = threading.Event()

    async def ask() -> Reply:
        busy = [asyncio.ensure_future(server.llm.run_input(release.wait)) for _ in range(4)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await server.ask("POST", path, CHAT)
        finally:
            release.set()
            await asyncio.gather(*busy)

    assert code_of(asyncio.run(ask())) == EXPIRED


@pytest.mark.parametrize("interval_s", [0.02, 10.0])
@pytest.mark.parametrize("is_stream", [False, True])
def test_time_in_which_the_model_is_loaded_counts(
    serve: Serve, is_stream: bool, interval_s: float
) -> None:
    server = serve(config={"request_timeout_s": 0.2, "keep_alive_interval_s": interval_s})

    async def work(loads: Loads) -> Reply:
        await asleep(server)
        loads.gate.clear()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await server.ask("POST", PATH, {**CHAT, "stream": is_stream})
        finally:
            loads.gate.set()

    reply = run(server, work)

    if is_stream and interval_s < 1:
        assert reply.status == 200
        assert [event["error"]["code"] for event in reply.data()] == ["deadline_exceeded"]
        assert reply.is_complete
    else:
        assert code_of(reply) == EXPIRED
