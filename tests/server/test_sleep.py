"""A model that nobody asks is unloaded, and loaded again by the next request."""

import asyncio
import gc
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import CheckpointError
from pyvt.server.app import create_app
from pyvt.server.run import listen
from pyvt.server.run import serve as serve_until_a_signal
from pyvt.server.sleep import sleep_when_idle
from pyvt.server.state import ServerState
from tests.engine.engines import engine_of
from tests.server.conftest import Serve
from tests.server.harness import HERMES, PATIENCE_S, Client, Reply, Script, Server

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
PATH = "/v1/chat/completions"
KEEP_ALIVE_S = 0.05


class Loads:
    """Loads engines and counts them; ``error`` is raised by the next load."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.num = 0
        self.error: Exception | None = None
        self.made: list[AsyncLLM] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self) -> AsyncLLM:
        self.num += 1
        assert self.gate.wait(PATIENCE_S), "nobody lets the model be loaded"
        error, self.error = self.error, None
        if error is not None:
            raise error
        template = self.server.engine.input_processor.chat_template
        settings: dict[str, Any] = {"max_model_len": 400, "num_blocks": 400}
        engine = engine_of(forced=Script(["Again."]), chat_template=template, **settings)
        self.made.append(AsyncLLM.from_engine(engine))
        return self.made[-1]


def run(server: Server, work: Callable[[Loads], Awaitable[Any]]) -> Any:
    """Run work on a server that falls asleep."""
    loads = Loads(server)
    server.state.load = loads

    async def main() -> Any:
        sleeping = asyncio.ensure_future(sleep_when_idle(server.state, KEEP_ALIVE_S))
        try:
            return await work(loads)
        finally:
            sleeping.cancel()

    try:
        return asyncio.run(main())
    finally:
        for llm in loads.made:
            llm.thread.shutdown()


async def asleep(server: Server) -> None:
    """Wait until the model is unloaded."""
    async with asyncio.timeout(PATIENCE_S):
        while server.state.llm is not None:
            await asyncio.sleep(0.005)


def _text(reply: Reply) -> Any:
    assert reply.status == 200, reply.text
    return reply.json()["choices"][0]["message"]["content"]


def test_next_request_loads_what_was_unloaded_and_many_share_the_load(serve: Serve) -> None:
    server = serve(["First."])

    async def work(loads: Loads) -> None:
        assert _text(await server.ask("POST", PATH, CHAT)) == "First."
        await asleep(server)
        replies = await asyncio.gather(*(server.ask("POST", PATH, CHAT) for _ in range(5)))
        assert [_text(reply) for reply in replies] == ["Again."] * 5
        assert loads.num == 1
        await asleep(server)

    run(server, work)


def test_model_that_sleeps_holds_no_memory(serve: Serve) -> None:
    server = serve()
    core = weakref.ref(server.engine.core)
    # Nobody but the server holds the engine from here on.
    server.engine = server.llm = None  # type: ignore[assignment]

    async def plain() -> None:
        gc.freeze()  # as behind every load of a server that runs
        sleeping = asyncio.ensure_future(sleep_when_idle(server.state, KEEP_ALIVE_S))
        await server.ask("POST", PATH, CHAT)
        await asleep(server)
        sleeping.cancel()

    asyncio.run(plain())
    gc.collect()

    assert core() is None
    server.close = lambda: None  # type: ignore[method-assign] # there is nothing left to close


def test_server_that_runs_holds_neither_its_first_model_nor_the_next_one(serve: Serve) -> None:
    config = replace(serve().state.config, port=0, keep_alive_s=KEEP_ALIVE_S)
    state = ServerState(config=config, names=("tiny",))
    cores: list[weakref.ref[Any]] = []
    held: list[list[bool]] = []

    def load() -> AsyncLLM:
        llm = AsyncLLM.from_engine(engine_of(forced=Script(["Hi."]), max_model_len=400))
        cores.append(weakref.ref(llm.engine.core))
        return llm

    async def look_at_two() -> None:
        try:
            for _ in range(2):
                async with asyncio.timeout(PATIENCE_S):
                    while not state.is_asleep or state.llm is not None:
                        await asyncio.sleep(0.005)
                    while gc.get_freeze_count():
                        await asyncio.sleep(0.005)
                await asyncio.to_thread(gc.collect)
                held.append([core() is not None for core in cores])
                body = {"prompt": "Hi", "max_tokens": 3}
                reply = await Client(create_app(state)).ask("POST", "/v1/completions", body)
                assert reply.status == 200, reply.text
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    looking: list[asyncio.Future[None]] = []
    serve_until_a_signal(
        state,
        listen(config),
        load,
        on_ready=lambda _: looking.append(asyncio.ensure_future(look_at_two())),
        on_drain=lambda _: None,
    )

    looking[0].result()
    assert held == [[False], [False, False]]


def test_stream_longer_than_the_limit_keeps_the_model(serve: Serve) -> None:
    server = serve(["x" * 60], before_step=lambda _: time.sleep(0.004))

    async def work(loads: Loads) -> Reply:
        return await server.ask("POST", PATH, {**CHAT, "stream": True, "max_tokens": 60})

    reply = run(server, work)

    assert reply.is_done
    assert "error" not in reply.text


def test_server_that_sleeps_is_ready_and_answers_what_needs_no_model(serve: Serve) -> None:
    server = serve()

    async def work(loads: Loads) -> dict[str, int]:
        await asleep(server)
        paths = ("/ready", "/health", "/metrics", "/v1/models", "/version", "/")
        found = {path: (await server.ask("GET", path)).status for path in paths}
        found["abort"] = (await server.ask("POST", "/abort", {"request_id": "x"})).status
        assert loads.num == 0
        return found

    found = run(server, work)

    assert set(found.values()) == {200}


def test_model_that_sleeps_is_told_of_as_when_it_was_awake(serve: Serve) -> None:
    server = serve(template=HERMES)

    async def work(loads: Loads) -> list[dict[str, Any]]:
        awake = await server.ask("GET", "/v1/models/tiny")
        await asleep(server)
        return [awake.json(), (await server.ask("GET", "/v1/models/tiny")).json()]

    told = run(server, work)

    assert [model.pop("status") for model in told] == ["ready", "asleep"]
    assert told[0] == told[1]
    assert told[1]["max_model_len"] == 400
    assert told[1]["capabilities"]["tool_calls"] == "hermes"


def test_load_that_fails_is_an_error_and_the_next_request_tries_again(serve: Serve) -> None:
    server = serve()

    async def work(loads: Loads) -> tuple[Reply, Reply]:
        await asleep(server)
        loads.error = CheckpointError("[model] '/home/somebody/x': expected it to be there")
        return await server.ask("POST", PATH, CHAT), await server.ask("POST", PATH, CHAT)

    failed, again = run(server, work)

    assert failed.status == 500
    assert "/home" not in failed.text
    assert _text(again) == "Again."


@pytest.mark.parametrize("is_stream", [False, True])
def test_client_that_leaves_while_the_model_is_loaded_ends_nobody_elses_load(
    serve: Serve, is_stream: bool
) -> None:
    server = serve()

    async def work(loads: Loads) -> Reply:
        await asleep(server)
        left = asyncio.Event()
        body = {**CHAT, "stream": is_stream}
        first = asyncio.ensure_future(server.ask("POST", PATH, body, left=left))
        second = asyncio.ensure_future(server.ask("POST", PATH, CHAT))
        left.set()
        first.cancel()
        return await second

    assert _text(run(server, work)) == "Again."


STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (CHAT, "data: [DONE]\n\n"),
    "/v1/completions": ({"prompt": "Hi"}, "data: [DONE]\n\n"),
    "/v1/responses": ({"input": "Hi"}, "}\n\n"),
    "/v1/messages": (CHAT, "}\n\n"),
}


async def _commented(server: Server, loads: Loads, path: str, body: dict[str, Any]) -> Reply:
    """Ask for a stream of a model that sleeps; let it be loaded behind two comments."""
    await asleep(server)
    loads.gate.clear()

    async def see(reply: Reply) -> None:
        assert reply.status == 200
        if len(reply.chunks) == 2:
            loads.gate.set()

    return await server.ask("POST", path, {**body, "stream": True}, gate=see)


def test_streams_get_comments_while_the_model_is_loaded(serve: Serve) -> None:
    server = serve(config={"keep_alive_interval_s": 0.02})

    async def work(loads: Loads) -> dict[str, Reply]:
        return {
            path: await _commented(server, loads, path, body) for path, (body, _) in STREAMS.items()
        }

    for path, reply in run(server, work).items():
        assert reply.chunks[:2] == [b": keep-alive\n\n"] * 2, path
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.is_complete
        assert reply.text.endswith(STREAMS[path][1])
        letters = re.findall(r'"(?:content|text|delta)":"(.)"', reply.text)
        assert "".join(letters) == "Again."


def test_refusal_behind_comments_is_an_event_with_the_error(serve: Serve) -> None:
    server = serve(config={"keep_alive_interval_s": 0.02})

    async def work(loads: Loads) -> dict[str, Reply]:
        return {
            path: await _commented(server, loads, path, {**body, "top_k": "x"})
            for path, (body, _) in STREAMS.items()
        }

    for path, reply in run(server, work).items():
        (event,) = reply.data()
        error = event if path == "/v1/responses" else event["error"]
        assert "top_k" in error["message"]
        assert event.get("type", "error") == "error", path
        assert reply.is_complete
        is_named = path in ("/v1/responses", "/v1/messages")
        assert ("event: error\n" in reply.text) == is_named


def test_load_that_fails_behind_comments_is_an_event_with_the_error(serve: Serve) -> None:
    server = serve(config={"keep_alive_interval_s": 0.02})

    async def work(loads: Loads) -> Reply:
        await asleep(server)
        loads.error = CheckpointError("[model] '/home/somebody/x': expected it to be there")
        return await _commented(server, loads, PATH, CHAT)

    reply = run(server, work)

    assert reply.data()[-1]["error"]["type"] == "server_error"
    assert "/home" not in reply.text


def test_client_that_leaves_behind_comments_ends_its_request_alone(serve: Serve) -> None:
    server = serve(config={"keep_alive_interval_s": 0.02})

    async def work(loads: Loads) -> Reply:
        await asleep(server)
        loads.gate.clear()
        left = asyncio.Event()

        async def leave(reply: Reply) -> None:
            left.set()

        first = await server.ask("POST", PATH, {**CHAT, "stream": True}, left=left, gate=leave)
        assert set(first.chunks) == {b": keep-alive\n\n"}
        loads.gate.set()
        return await server.ask("POST", PATH, CHAT)

    assert _text(run(server, work)) == "Again."
