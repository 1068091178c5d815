"""The server on loopback: the official client, sockets, and signals in processes of their own."""

import asyncio
import gc
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from pyvt.config.server import ServerConfig
from pyvt.errors import ConfigError
from pyvt.server.run import (
    KEEP_ALIVE_S,
    UnsignalledServer,
    listen,
    settled,
    url_of,
    uvicorn_config,
)
from tests.server.conftest import Serve
from tests.server.harness import HERMES, PATIENCE_S, SOON_S, THINKING, Server
from tests.server.process import Launch

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'
)
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@contextmanager
def on_loopback(server: Server) -> Iterator[str]:
    """Serve a fake model on a free port; yields the URL."""
    config = replace(server.state.config, port=0)
    sock = listen(config)
    running = UnsignalledServer(uvicorn_config(server.state))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield url_of(config, sock)
    finally:
        running.stop()
        thread.join(60)
        sock.close()
    assert not thread.is_alive()


@contextmanager
def client_of(server: Server, **settings: Any) -> Iterator[openai.OpenAI]:
    """The official client of a server."""
    with on_loopback(server) as url:
        client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="key", max_retries=0, timeout=PATIENCE_S, **settings
        )
        with client:
            yield client


def test_openai_client_reads_chats_and_streams(serve: Serve) -> None:
    server = serve(["Paris."])
    with client_of(server) as client:
        assert client.models.list().data[0].id == "tiny"
        assert client.models.retrieve("org/other").id == "org/other"
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=50)
        server.forget()
        with client.chat.completions.stream(
            model="tiny", messages=MESSAGES, max_tokens=50, stream_options={"include_usage": True}
        ) as stream:
            final = stream.get_final_completion()
        complete = client.completions.create(model="tiny", prompt=["a", "b"], echo=True)

    assert whole.choices[0].message.content == "Paris."
    assert whole.usage is not None
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].message.content == "Paris."
    assert final.choices[0].finish_reason == "stop"
    assert final.usage == whole.usage
    assert [choice.text for choice in complete.choices] == ["aParis.", "bParis."]


def test_openai_client_reads_streamed_calls_and_reasoning(serve: Serve) -> None:
    server = serve([f"<think>\nhm\n</think>\n\n{CALLS}"], template=THINKING)

    with (
        client_of(server) as client,
        client.chat.completions.stream(
            model="tiny", messages=MESSAGES, tools=[TOOL], max_tokens=250
        ) as stream,
    ):
        message = stream.get_final_completion().choices[0].message

    assert message.tool_calls is not None
    assert [c.function.arguments for c in message.tool_calls] == [
        '{"city": "Paris"}',
        '{"city": "Rom"}',
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "hm"


def test_openai_client_streams_several_answers(serve: Serve) -> None:
    with (
        client_of(serve(["one", "two"], template=HERMES)) as client,
        client.chat.completions.stream(
            model="tiny", messages=MESSAGES, n=2, max_tokens=20
        ) as stream,
    ):
        choices = stream.get_final_completion().choices

    assert [choice.message.content for choice in choices] == ["one", "two"]


def test_openai_client_raises_by_status(serve: Serve) -> None:
    with client_of(serve(config={"api_key": ("key",)})) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as long:
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9999)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()

    assert missing.value.code == "model_not_found"
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "max_tokens"


def test_openai_client_that_closes_a_stream_ends_the_request(serve: Serve) -> None:
    server = serve(["x" * 350], before_step=lambda _: time.sleep(0.002))

    with client_of(server) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, max_tokens=300
        )
        next(iter(stream))
        stream.close()
        assert server.becomes_idle(SOON_S)

    assert server.engine.core.stats.num_finished["abort"] == 1


def test_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}.*--port"):
            listen(ServerConfig(port=port))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
    ],
)
def test_url_is_one_that_a_client_here_can_use(host: str, url: str) -> None:
    config = ServerConfig(host=host, port=0)

    with listen(config) as sock:
        told = url_of(config, sock)

    assert told.startswith(url)
    assert not told.endswith(":0")


def test_unix_socket_is_its_owners_and_replaces_a_dead_one(tmp_path: Path) -> None:
    config = ServerConfig(uds=str(tmp_path / "s"))
    listen(config).close()

    with listen(config) as sock:
        assert Path(config.uds or "").stat().st_mode & 0o777 == 0o600
        assert url_of(config, sock) == f"unix:{config.uds}"
        with pytest.raises(ConfigError, match="in use"):
            listen(config)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A new certificate of 127.0.0.1 that nobody else signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    paths = {"ssl_certfile": str(folder / "cert.pem"), "ssl_keyfile": str(folder / "key.pem")}
    names = ["-subj", "/CN=pyvt", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key = ["-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-out", paths["ssl_certfile"], "-keyout", paths["ssl_keyfile"]]
    command = [openssl, "req", "-x509", *key, *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    return paths


def test_tls_client_that_trusts_the_certificate_gets_streams_and_others_nothing(
    serve: Serve, certificate: dict[str, str]
) -> None:
    server = serve(["Paris."], config=certificate)
    body = b'{"prompt": "a", "stream": true}'
    trusting = ssl.create_default_context(cafile=certificate["ssl_certfile"])

    with on_loopback(server) as url:
        assert url.startswith("https://127.0.0.1:")
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as reply:
            assert reply.read().endswith(b"data: [DONE]\n\n")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S)
        with pytest.raises(OSError, match=r"without response|reset"):
            urllib.request.urlopen(url.replace("https", "http") + "/health", timeout=PATIENCE_S)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificate_that_cannot_be_used_is_a_clear_error(
    serve: Serve, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    server = serve(config={"ssl_certfile": str(path), "ssl_keyfile": str(path)})

    with pytest.raises(ConfigError, match="PEM files of a certificate"):
        uvicorn_config(server.state)


def test_load_of_a_server_keeps_the_collector_from_what_is_there(serve: Serve) -> None:
    server = serve()
    try:
        assert settled(lambda: server.llm)() is server.llm
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


def test_connections_outlive_the_pools_of_clients() -> None:
    assert KEEP_ALIVE_S >= 75


def test_process_prints_what_is_served_drains_on_a_signal_and_frees_the_port(
    launch: Launch,
) -> None:
    server = launch()
    reply = server.stream()

    server.process.send_signal(signal.SIGTERM)

    assert reply.read().endswith(b"data: [DONE]\n\n")
    assert server.end() == 0
    words = [line.split()[0] for line in server.lines if not line.startswith("{")]
    assert words == ["loading", "context", "memory", "model", "detected", "url", "try", "stopping"]
    assert server.lines[1] == "context    30000 tokens, the model's own"
    assert "weights" in server.lines[2]
    assert "KV" in server.lines[2]
    assert server.lines[3].endswith(
        "tiny-llama as 'tiny-llama': LlamaForCausalLM, weights in f32, on numpy in f32"
    )
    assert "requests" in next(line for line in server.lines if line.startswith("stopping"))
    # Beside them: a line for each request.
    (access,) = [json.loads(line) for line in server.lines if line.startswith("{")]
    assert (access["path"], access["status"]) == ("/v1/completions", 200)
    socket.create_server(("127.0.0.1", server.port)).close()


def test_idle_engine_takes_no_processor_time(serve: Serve) -> None:
    server = serve()
    server.chat()
    before_s = time.process_time()

    asyncio.run(asyncio.sleep(1.0))

    assert time.process_time() - before_s < 0.5


def test_idle_server_wakes_up_for_the_date_alone(serve: Serve) -> None:
    state = serve(config={"port": 0}).state
    ticks: list[float] = []

    class Counting(UnsignalledServer):
        async def on_tick(self, counter: int) -> bool:
            ticks.append(time.monotonic())
            return await super().on_tick(counter)

    async def run(spent_s: float) -> None:
        server = Counting(uvicorn_config(state))
        running = asyncio.ensure_future(server.serve(sockets=[listen(state.config)]))
        await asyncio.sleep(spent_s)
        server.stop()
        await running

    asyncio.run(run(1.5))
    assert len(ticks) <= 3 + ticks[-1] - ticks[0]


def test_the_printed_curl_reaches_a_unix_socket(launch: Launch, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    server = launch("--uds", str(tmp_path / "a socket"))
    command = server.lines[-1].removeprefix("try").strip()

    done = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, timeout=PATIENCE_S)

    assert json.loads(done.stdout)["choices"][0]["finish_reason"] in ("stop", "length")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
