"""Clients that leave, clients that read slowly, and silence in a stream."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pyvt.server.app import create_app
from pyvt.server.sse import COMMENT, ClientGoneError, EventStream, until_client_leaves
from pyvt.server.state import ServerState
from tests.server.conftest import Serve
from tests.server.harness import PATIENCE_S, Reply, Server

LONG = "x" * 300
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "Hi", "max_tokens": 300}}


async def _until(condition: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; fail after the limit."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


class Hold:
    """Holds the engine before a step until it is let go."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.num_steps = 0
        self.is_held = threading.Event()
        self.gate = threading.Event()

    def __call__(self, step: Any) -> None:
        self.num_steps += 1
        if self.num_steps == self.at:
            self.is_held.set()
            assert self.gate.wait(PATIENCE_S), "nobody let the engine go"


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("at", [1, 4])
def test_client_that_leaves_ends_its_request(
    serve: Serve, path: str, is_stream: bool, at: int
) -> None:
    hold = Hold(at)
    server = serve([LONG], before_step=hold)

    async def leave() -> None:
        left = asyncio.Event()
        body = {**ROUTES[path], "stream": is_stream}
        asking = asyncio.ensure_future(server.ask("POST", path, body, left=left))
        await asyncio.to_thread(hold.is_held.wait, 5)
        left.set()
        await asking
        hold.gate.set()
        await _until(lambda: server.is_idle)

    asyncio.run(leave())

    assert hold.num_steps <= at + 2
    assert server.engine.core.stats.num_finished["abort"] == 1
    assert server.chat().status == 200


def test_client_that_leaves_while_it_waits_in_the_queue_ends_its_request(serve: Serve) -> None:
    hold = Hold(2)
    # The first request takes all blocks, so the second one waits.
    server = serve([LONG], before_step=hold, num_blocks=100)

    async def leave() -> None:
        first_left, second_left = asyncio.Event(), asyncio.Event()
        body = {**CHAT, "max_tokens": 300}
        path = "/v1/chat/completions"
        first = asyncio.ensure_future(server.ask("POST", path, body, left=first_left))
        await asyncio.to_thread(hold.is_held.wait, 5)
        second = asyncio.ensure_future(server.ask("POST", path, body, left=second_left))
        await _until(lambda: server.llm.num_unfinished_requests == 2)
        second_left.set()
        await second
        first_left.set()
        await first
        hold.gate.set()
        await _until(lambda: server.is_idle)

    asyncio.run(leave())

    assert server.engine.core.stats.num_finished["abort"] == 2


def test_client_that_does_not_read_is_ended_and_others_are_not(serve: Serve) -> None:
    server = serve([LONG], config={"stall_timeout_s": 0.2})
    never = asyncio.Event()

    async def stalled(reply: Reply) -> None:
        if len(reply.chunks) == 3:
            await never.wait()

    async def both() -> tuple[Reply, Reply]:
        body = {**CHAT, "stream": True, "max_tokens": 300}
        path = "/v1/chat/completions"
        slow = asyncio.ensure_future(server.ask("POST", path, body, gate=stalled))
        fast = await server.ask("POST", path, body)
        async with asyncio.timeout(PATIENCE_S):
            return await slow, fast

    slow, fast = asyncio.run(both())

    assert fast.is_done
    assert not slow.is_complete
    assert len(slow.chunks) == 3
    assert server.becomes_idle()


def test_slow_client_gets_everything(serve: Serve) -> None:
    server = serve(["abc" * 20])

    async def slowly(_: Reply) -> None:
        await asyncio.sleep(0.002)

    body = {**CHAT, "stream": True, "max_tokens": 100}
    reply = asyncio.run(server.ask("POST", "/v1/chat/completions", body, gate=slowly))

    texts = [c["choices"][0]["delta"].get("content", "") for c in reply.data()]
    assert "".join(texts) == "abc" * 20
    assert reply.is_done


def test_silence_is_filled_with_comments(serve: Serve) -> None:
    hold = Hold(1)
    server = serve(before_step=hold, config={"keep_alive_interval_s": 0.05})

    async def until_comments(reply: Reply) -> None:
        if reply.chunks.count(COMMENT) == 2:
            hold.gate.set()

    body = {**CHAT, "stream": True}
    reply = asyncio.run(server.ask("POST", "/v1/chat/completions", body, gate=until_comments))

    assert reply.chunks.count(COMMENT) >= 2
    assert reply.data()[-1]["choices"][0]["finish_reason"] == "stop"


def test_full_queue_is_429_with_a_time_to_come_again(serve: Serve) -> None:
    hold = Hold(1)
    server = serve(before_step=hold, max_requests=1)

    async def ask() -> tuple[Reply, Reply]:
        path = "/v1/chat/completions"
        first = asyncio.ensure_future(server.ask("POST", path, CHAT))
        await asyncio.to_thread(hold.is_held.wait, 5)
        second = await server.ask("POST", path, {**CHAT, "stream": True})
        hold.gate.set()
        return await first, second

    first, second = asyncio.run(ask())

    assert first.status == 200
    assert second.status == 429
    assert second.headers["retry-after"] == "1"
    assert second.json()["error"]["code"] == "queue_full"


def test_several_prompts_start_together_or_not_at_all(serve: Serve) -> None:
    server = serve()

    reply = server.complete(["ok", "ok", "x" * 500])

    assert reply.status == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert server.becomes_idle()
    assert len(server.complete(["a", "b"]).json()["choices"]) == 2


def test_models_tell_whether_the_model_is_there(serve: Serve) -> None:
    server = serve()

    def status() -> tuple[str, bool]:
        (model, _) = server.get("/v1/models").json()["data"]
        return model["status"], "max_model_len" in model

    ready = status()
    server.state.is_draining = True
    stopped = status()
    server.state.is_draining, server.state.llm, server.state.is_asleep = False, None, True
    asleep = status()
    server.app = create_app(ServerState(config=server.state.config, names=server.state.names))

    assert (ready, stopped, asleep) == (("ready", True), ("stopped", True), ("asleep", True))
    assert status() == ("loading", False)


def test_draining_and_loading_server_is_503(serve: Serve) -> None:
    server = serve()

    server.state.is_draining = True
    draining = server.chat()
    server.state.is_draining = False
    server.state.llm = None
    loading = server.complete()

    assert (draining.status, draining.json()["error"]["code"]) == (503, "draining")
    assert (loading.status, loading.json()["error"]["code"]) == (503, "loading")
    assert "retry-after" in loading.headers
    assert server.get("/health").status == 200
    assert (server.get("/ready").status, "loaded" in server.get("/ready").text) == (503, True)


def test_dead_engine_is_500_and_not_healthy(serve: Serve) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("secret /home/path")

    server: Server = serve(before_step=fail)

    first, second = server.chat(), server.chat()
    streamed = server.chat(stream=True)

    assert (first.status, second.status, streamed.status) == (500, 500, 500)
    assert "secret" not in first.text + second.text
    assert server.get("/health").status == 500
    assert server.get("/ready").status == 503


def test_chunks_are_closed_when_the_client_leaves() -> None:
    closed = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def run() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                left.set()

        await EventStream(chunks(), keep_alive_s=5, stall_s=5)({"type": "http"}, receive, send)

    asyncio.run(run())

    assert closed == [True]


def test_stream_whose_chunks_all_wait_hears_of_a_client_that_left() -> None:
    num_sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"data: 1\n\n"

    async def run() -> None:
        left = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal num_sent
            num_sent += 1
            if num_sent == 5:
                left.set()

        await EventStream(chunks(), keep_alive_s=5, stall_s=5)({"type": "http"}, receive, send)

    asyncio.run(run())

    assert 5 <= num_sent < 50


def test_work_is_cancelled_when_the_client_leaves() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGoneError):
        asyncio.run(until_client_leaves(receive, work()))

    assert ended == [True]
