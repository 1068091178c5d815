"""Servers as clients of the command line see them, ours and broken ones, on loopback."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyvt.cli.remote import RemoteServer
from pyvt.errors import RequestError, ServerError
from tests.cli.conftest import RunCommand
from tests.server.harness import HERMES, Server
from tests.server.test_run import certificate, on_loopback

__all__ = ["certificate"]

MESSAGES = [{"role": "user", "content": "Hi"}]
Serve = Callable[..., Server]
CHUNKED = b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def make(*args: Any, **settings: Any) -> Server:
        servers.append(Server(*args, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that says these bytes, to a client each, and no more; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
            listening.close()

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(60)


async def _all(server: RemoteServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [event async for event in server.events("/chat/completions", body)]


def ask(url: str, key: str = "", **fields: Any) -> list[dict[str, Any]]:
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 50, **fields}
    return asyncio.run(_all(RemoteServer(url, key, timeout_s=60), body))


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_events_of_a_stream_come_one_by_one(serve: Serve, suffix: str) -> None:
    with on_loopback(serve(["Grüße 😀"])) as url:
        events = ask(url + suffix)

    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "Grüße 😀"


def test_model_is_the_first_that_is_served(serve: Serve) -> None:
    with on_loopback(serve()) as url:
        assert asyncio.run(RemoteServer(url).model()) == "tiny"


def test_refusals_are_told_in_the_servers_words(serve: Serve) -> None:
    with on_loopback(serve(config={"api_key": ("k",)})) as url:
        with pytest.raises(ServerError, match=r"401: .*api key"):
            ask(url)
        with pytest.raises(ServerError, match=r"404: .*'nope' is not served"):
            ask(url, "k", model="nope")


def test_failure_inside_a_stream_is_an_error(serve: Serve) -> None:
    server = serve(["x"], clock=time.perf_counter, before_step=lambda _: time.sleep(0.005))
    with on_loopback(server) as url, pytest.raises(ServerError, match="deadline"):
        ask(url, timeout_s=0.05, max_tokens=300, ignore_eos=True)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "broke off"),
        (b"SSH-2.0-nonsense\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 500 x\r\ncontent-length: 4\r\n\r\noops", "500: oops"),
        (b'HTTP/1.1 400 x\r\ncontent-length: 17\r\n\r\n{"error": "nope"}', "400: nope"),
        (b"HTTP/1.1 200 x\r\n\r\ndata: {}\n\n", "breaks off"),
        (b"HTTP/1.1 200 x\r\n\r\ndata: {\n\n", "broke off"),
        (CHUNKED + b"5\r\nda", "broke off: the connection was closed; see whether"),
        (CHUNKED + b"2\r\n: \r\n", "broke off: the connection was closed; see whether"),
        (CHUNKED + b"zz\r\n", "broke off: a chunk without a length"),
    ],
)
def test_broken_servers_are_a_clear_error(answer: bytes, text: str) -> None:
    with answering(answer) as url, pytest.raises(ServerError, match=text):
        ask(url)


def test_nobody_who_answers_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerError, match="expected a server"):
        ask(f"http://127.0.0.1:{port}")


def test_server_without_tls_is_no_https_server(serve: Serve) -> None:
    with on_loopback(serve()) as url, pytest.raises(ServerError) as failed:
        ask(url.replace("http:", "https:"))

    text = str(failed.value)
    assert text.startswith("[url] https://127.0.0.1:")
    assert "expected a server with TLS" in text
    assert text.endswith("; http:// is for one without")


def test_server_with_a_certificate_of_its_own_is_told_apart(
    serve: Serve, certificate: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_loopback(serve(["Yes."], config=certificate)) as url:
        with pytest.raises(ServerError, match=r"trusted, got self.signed certificate; SSL_CERT_"):
            ask(url)
        with pytest.raises(ServerError, match=r"https:// is for servers with TLS|was closed"):
            ask(url.replace("https:", "http:"))
        monkeypatch.setenv("SSL_CERT_FILE", certificate["ssl_certfile"])
        assert ask(url)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://"])
def test_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match=r"\[url\]"):
        RemoteServer(url)


def test_chat_with_a_server_keeps_the_conversation(serve: Serve, run_command: RunCommand) -> None:
    server = serve(["Hello.", "Ada."], template=HERMES, config={"api_key": ("k",)})
    with on_loopback(server) as url:
        result = run_command(
            *("chat", "--url", url, "--api-key", "k", "-s", "Be kind", "--max-tokens", "20"),
            stdin=b"I am Ada\nWho am I?\n",
        )

    assert (result.code, result.out) == (0, "Hello.\nAda.\n")
    last = server.engine.core.runner.steps  # type: ignore[attr-defined]
    prompts = [bytes(new.prompt_token_ids).decode() for s in last for new in s.new_requests]
    assert prompts[1] == (
        "[system]Be kind[user]I am Ada[assistant]Hello.[user]Who am I?[assistant]"
    )


def test_chat_with_a_server_tells_of_refusals_and_goes_on(
    serve: Serve, run_command: RunCommand
) -> None:
    with on_loopback(serve(["Yes."])) as url:
        result = run_command(
            *("chat", "--url", url, "--max-tokens", "20"), stdin=b"x" * 1000 + b"\nshort\n"
        )
        wrong = run_command("chat", "--url", url, "-m", "other", stdin=b"a\n")

    assert (result.code, result.out) == (1, "Yes.\n")
    assert "context of 400" in result.err
    assert (wrong.code, wrong.out) == (1, "")
    assert "'other' is not served" in wrong.err


@pytest.mark.parametrize("option", [("--threads", "1"), ("--no-enable-prefix-caching",)])
def test_chat_with_a_server_refuses_settings_of_an_engine(
    run_command: RunCommand, option: tuple[str, ...]
) -> None:
    result = run_command("chat", "--url", "http://127.0.0.1:1", *option, stdin=b"a\n")

    assert result.code == 2
    assert f"{option[0].replace('no-', '')}: expected none with --url" in result.err


def test_chat_with_nobody_ends_with_code_1(run_command: RunCommand) -> None:
    result = run_command("chat", "--url", "http://127.0.0.1:1", stdin=b"a\n")

    assert result.code == 1
    assert "expected a server, got connection refused; start one" in result.err
