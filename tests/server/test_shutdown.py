"""The way down of a server's process: drains, signals, and clients that are in the middle."""

import json
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import PATIENCE_S
from tests.server.process import Launch, Process

# Of a stream that no machine ends within a test.
ENDLESS = 25_000
# What an end that takes a second may take on a machine that has much else to do.
AT_ONCE_S = PATIENCE_S / 2
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 1000\r\n\r\n"
)


def connected(server: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def whole_answer(server: Process) -> bytes:
    with connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: sock.recv(4096), b""))


def children_of(pid: int) -> list[str]:
    """Return the processes that any thread of a process has started."""
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for path in paths for child in path.read_text().split()]


def left_of_session(session: int) -> list[str]:
    """Return the processes of a session."""
    left = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            left.append(path.parent.name)
    return left


def test_process_aborts_what_outlives_the_drain_and_tells_its_client(launch: Launch) -> None:
    server = launch("--shutdown-timeout", "0.5")
    reply = server.stream(ENDLESS)

    start_s = time.monotonic()
    server.signal(signal.SIGINT)
    events = reply.read().strip().split(b"\n\n")

    assert server.end() == 0
    assert time.monotonic() - start_s < AT_ONCE_S
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"]
    assert any("aborting 1 requests" in line for line in server.lines)


def test_process_ends_at_once_on_a_second_signal(launch: Launch) -> None:
    server = launch("--shutdown-timeout", "600")
    reply = server.stream(ENDLESS)

    server.signal(signal.SIGINT)
    assert server.process.poll() is None
    start_s = time.monotonic()
    server.process.send_signal(signal.SIGTERM)

    assert server.end() == 130
    assert time.monotonic() - start_s < AT_ONCE_S
    reply.close()


def test_process_with_streams_refuses_drains_and_leaves_nothing_behind(launch: Launch) -> None:
    server = launch("--shutdown-timeout", "1")
    pid = server.process.pid
    streams = [server.stream(ENDLESS) for _ in range(4)]
    children = children_of(pid)

    server.signal(signal.SIGTERM)
    refusals: list[Any] = []
    for _ in range(3):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.post({"prompt": "a"})
        refused.value.close()
        refusals.append((refused.value.code, refused.value.headers["retry-after"] is not None))
        children += children_of(pid)
    ends = [stream.read().strip().split(b"\n\n")[-1] for stream in streams]

    assert server.end() == 0
    assert refusals == [(503, True)] * 3
    assert all(b'"error"' in end for end in ends)
    assert any(line.startswith("stopping   4 requests") for line in server.lines)
    assert children == []
    assert left_of_session(pid) == []
    socket.create_server(("127.0.0.1", server.port)).close()


@pytest.mark.parametrize("sent", [b"", HEAD[:40], HEAD, HEAD + b'{"prompt": '])
def test_request_that_is_not_whole_holds_up_no_end(launch: Launch, sent: bytes) -> None:
    server = launch("--shutdown-timeout", "600")
    with connected(server) as sock:
        sock.sendall(sent)
        # Answered behind what was sent before.
        assert b"200" in whole_answer(server)

        start_s = time.monotonic()
        server.signal(signal.SIGTERM)
        assert sock.recv(100) == b""

    assert server.end() == 0
    assert time.monotonic() - start_s < AT_ONCE_S
    assert not any("Error" in line or "Traceback" in line for line in server.lines)


def test_clients_that_neither_read_nor_send_hold_up_no_end(launch: Launch) -> None:
    server = launch("--shutdown-timeout", "1")
    body = b'{"prompt": "a", "max_tokens": 25000, "ignore_eos": true, "stream": true}'
    with connected(server) as half, connected(server) as slow:
        half.sendall(HEAD + b"{")
        slow.sendall(HEAD.replace(b"1000", b"%d" % len(body)) + body)
        assert slow.recv(10)

        start_s = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - start_s < AT_ONCE_S

    assert not any("Error" in line or "Traceback" in line for line in server.lines)
    assert not any("ASGI" in line for line in server.lines)


def test_process_that_wakes_up_tells_nothing_of_its_memory_again(launch: Launch) -> None:
    server = launch("--keep-alive", "0.2")
    for _ in range(2):
        assert server.post({"prompt": "a", "max_tokens": 1}).status == 200
        await_sleep(server)
    assert server.post({"prompt": "a", "max_tokens": 1}).status == 200

    server.signal(signal.SIGINT)
    server.end()

    words = [line.split()[0] for line in server.lines if line]
    assert words.count("context") == words.count("memory") == 1


def await_sleep(server: Process) -> None:
    """Return once the server holds no model."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=PATIENCE_S) as reply:
            if json.load(reply)["data"][0]["status"] == "asleep":
                return
        time.sleep(0.05)
    raise AssertionError("expected a server that sleeps")
