"""Bytes on a socket that no client of ours would send."""

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyvt.server import connection
from tests.server.conftest import Serve
from tests.server.harness import PATIENCE_S, Server
from tests.server.test_run import on_loopback

HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "Hi", "max_tokens": 9}'
GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    return b"POST /v1/completions HTTP/1.1\r\n" + HEAD + lines + length + body


def talk(
    url: str,
    data: bytes,
    *,
    is_over: Callable[[bytes], bool] | None = None,
    is_half_closed: bool = False,
) -> bytes:
    """Send bytes; return what comes until the server ends, or has answered."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        if is_half_closed:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        while part := sock.recv(1 << 16):
            found += part
            if is_over is not None and is_over(found):
                break
        return found


def told(answer: bytes) -> tuple[int, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


WRONG = {
    "no_http": (b"GARBAGE\r\n\r\n", 400),
    "another_version": (b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n", 400),
    "http2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    "bytes_in_the_path": (b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "bytes_in_a_header": (GET + b"X: \x01\r\n\r\n", 400),
    "two_lengths": (post(BODY, b"Transfer-Encoding: chunked"), 400),
    "negative_length": (b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: -5\r\n\r\n", 400),
    "bad_chunk": (
        b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        400,
    ),
    "long_header": (GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "header_without_an_end": (GET + b"X: " + b"a" * 65_500, 431),
    "very_long_header": (GET + b"X: " + b"a" * 4_000_000 + b"\r\n\r\n", 431),
    "many_headers": (GET + b"".join(b"X-%d: a\r\n" % i for i in range(9000)) + b"\r\n", 431),
    "long_path": (b"GET /" + b"a" * 60_000 + b"?" + b"b" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
}


def test_bytes_that_are_no_request_are_an_error_and_the_end_of_the_connection(
    serve: Serve,
) -> None:
    with on_loopback(serve()) as url:
        for name, (data, status) in WRONG.items():
            got, error = told(talk(url, data))
            assert (name, got) == (name, status)
            assert error["error"]["type"] == "invalid_request_error"
            assert len(json.dumps(error)) < 400
        assert told(talk(url, post(BODY, b"Connection: close")))[0] == 200


def test_names_of_two_hosts_are_refused_and_ids_are_ascii(serve: Serve) -> None:
    close = b"Connection: close"
    with on_loopback(serve()) as url:
        two = talk(url, GET + b"Host: evil.example\r\nConnection: close\r\n\r\n")
        latin = talk(url, post(BODY, b"X-Request-Id: a\xffb", close))

    assert told(two)[0] == 403
    status, body = told(latin)
    assert status == 200
    assert body["id"].isascii()


def test_requests_in_a_row_on_one_connection_are_answered_in_order(serve: Serve) -> None:
    bodies = [b'{"prompt": "%s", "max_tokens": 3, "echo": true}' % text for text in (b"a", b"b")]
    server = serve(["xyz", "xyz"])
    data = b"".join(map(post, bodies)) + GET + b"Connection: close\r\n\r\n"

    with on_loopback(server) as url:
        answer = talk(url, data)

    assert answer.index(b'"text":"axyz"') < answer.index(b'"text":"bxyz"')
    assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET])
def test_head_that_does_not_come_ends_the_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    start_s = time.monotonic()

    with on_loopback(serve()) as url:
        assert talk(url, sent) == b""

    assert time.monotonic() - start_s < PATIENCE_S / 2


def test_body_that_stops_coming_is_a_408(serve: Serve) -> None:
    with on_loopback(serve(config={"stall_timeout_s": 0.1})) as url:
        status, error = told(
            talk(url, post(BODY)[:-5], is_over=lambda answer: answer.endswith(b"}\n"))
        )

    assert (status, error["error"]["code"]) == (408, "body_timeout")


def test_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = serve()
    with on_loopback(server) as url, caplog.at_level(logging.WARNING):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
            sock.sendall(post(BODY)[:-5])
        assert told(talk(url, post(BODY, b"Connection: close")))[0] == 200

    assert caplog.records == []
    assert server.becomes_idle()


def test_client_that_sends_no_more_gets_its_answer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HALF_CLOSED_S", PATIENCE_S)
    with on_loopback(serve()) as url:
        whole = talk(url, post(BODY), is_half_closed=True)
        stream = talk(url, post(BODY[:-1] + b', "stream": true}'), is_half_closed=True)
        two = talk(url, GET + b"\r\n" + GET + b"\r\n", is_half_closed=True)

    assert told(whole)[1]["choices"][0]["text"] == "Paris."
    assert stream.rstrip().endswith(b"0")
    assert b"data: [DONE]" in stream
    assert two.count(b'{"status":"ok"}') == 2


def test_client_that_sends_no_more_has_left_soon(serve: Serve) -> None:
    gate = threading.Event()
    server = serve(["x" * 350], before_step=lambda _: gate.wait(PATIENCE_S))
    try:
        with on_loopback(server) as url:
            assert talk(url, post(BODY), is_half_closed=True) == b""
    finally:
        gate.set()
    assert server.becomes_idle()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        post(BODY) + b"GARBAGE\r\n\r\n",
    ],
    ids=["body-of-a-get", "body-without-a-type", "behind-a-request"],
)
def test_request_whose_connection_is_refused_gets_no_second_answer(
    serve: Serve, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    server: Server = serve(["x" * 350])
    with on_loopback(server) as url, caplog.at_level(logging.WARNING, logger="pyvt"):
        answer = talk(url, sent)
        assert told(talk(url, post(BODY, b"Connection: close")))[0] == 200

    assert told(answer)[0] == 400
    assert answer.count(b"HTTP/1.1 ") == 1
    assert caplog.records == []
    assert server.becomes_idle()


def test_bytes_behind_a_request_do_not_get_into_its_stream(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server: Server = serve(["x" * 350], before_step=lambda _: time.sleep(0.01))
    with on_loopback(server) as url, caplog.at_level(logging.WARNING, logger="pyvt"):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
            sock.sendall(post(BODY[:-2] + b'99, "stream": true}'))
            found = sock.recv(1 << 16)
            sock.sendall(b"GARBAGE\r\n\r\n")
            while part := sock.recv(1 << 16):
                found += part

    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"[DONE]" not in found
    assert caplog.records == []
    assert server.becomes_idle()


def test_client_of_two_requests_that_leaves_ends_the_first(serve: Serve) -> None:
    steps: list[object] = []

    def slow_step(step: object) -> None:
        steps.append(step)
        time.sleep(0.05)

    server: Server = serve(["x" * 350], before_step=slow_step)
    with on_loopback(server) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
            sock.sendall(post(BODY[:-2] + b"99}") + GET + b"\r\n")
            end_s = time.monotonic() + PATIENCE_S
            while not steps and time.monotonic() < end_s:
                time.sleep(0.002)
        assert server.becomes_idle()

    assert 0 < len(steps) < 99


CLOSE = b"Connection: close"
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAMAAABkAAQAoAAA",
)


def read_answer(sock: socket.socket) -> tuple[int, Any]:
    """Read an answer of a told length from a connection that stays."""
    reply = http.client.HTTPResponse(sock)
    reply.begin()
    return reply.status, json.loads(reply.read())


@pytest.mark.parametrize("size", [7, 1 << 16])
@pytest.mark.parametrize(
    "offer", [OFFER, (b"Connection: Upgrade", b"Upgrade: websocket")], ids=["h2c", "websocket"]
)
def test_offer_of_another_protocol_is_not_taken_and_the_request_is_answered(
    serve: Serve, offer: tuple[bytes, ...], size: int
) -> None:
    body = b'{"prompt": "a", "max_tokens": 3, "echo": true}'
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    headers = b"\r\n".join((*offer, b"Transfer-Encoding: chunked"))
    requests = (
        post(body, *offer),
        b"POST /v1/completions HTTP/1.1\r\n" + HEAD + headers + b"\r\n\r\n" + chunked,
        GET + b"\r\n".join(offer) + b"\r\n\r\n",
        post(body),
    )

    with on_loopback(serve(["xyz"])) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
            answers = []
            for data in requests:
                for start in range(0, len(data), size):
                    sock.sendall(data[start : start + size])
                answers.append(read_answer(sock))

    assert [status for status, _ in answers] == [200] * 4
    assert answers[2][1] == {"status": "ok"}
    texts = [answer["choices"][0]["text"] for _, answer in answers if "choices" in answer]
    assert texts == ["axyz"] * 3


def test_stream_for_a_client_of_http_1_0_has_no_chunks_and_ends_with_the_connection(
    serve: Serve,
) -> None:
    whole = post(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
    stream = post(BODY[:-1] + b', "stream": true}').replace(b"HTTP/1.1", b"HTTP/1.0")

    with on_loopback(serve()) as url:
        answer, streamed = talk(url, whole), talk(url, stream)

    assert told(answer)[1]["choices"][0]["text"] == "Paris."
    head, _, events = streamed.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    lines = events.split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(line.startswith(b"data: ") for line in lines[:-1])


def test_stream_that_is_left_unread_is_cut_with_one_line_and_bounded_until_then(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[Any] = []
    made = connection.Connection.connection_made

    def connect(self: Any, transport: Any) -> None:
        made(self, transport)
        connections.append(self)
        # The system holds little, so what is not read waits here.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(connection.Connection, "connection_made", connect)
    size = {"max_model_len": 6000, "num_blocks": 3000}
    server = serve(["x" * 5000], config={"stall_timeout_s": 0.5}, **size)
    most = 0
    with on_loopback(server) as url, caplog.at_level(logging.WARNING):
        for name in ("pyvt", "uvicorn.error"):
            logging.getLogger(name).addHandler(caplog.handler)
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE_S)
            sock.connect((host, int(port)))
            sock.sendall(post(b'{"prompt": "Hi", "max_tokens": 5000, "stream": true}'))
            end_s = time.monotonic() + PATIENCE_S
            while not connections or connections[0].parser is not None:
                assert time.monotonic() < end_s, "nobody ends the connection"
                if connections:
                    most = max(most, connections[0].transport.get_write_buffer_size())
                time.sleep(0.001)
        for name in ("pyvt", "uvicorn.error"):
            logging.getLogger(name).removeHandler(caplog.handler)

    assert server.becomes_idle()
    assert 0 < most < 2 * 65536
    (line,) = [record.getMessage() for record in caplog.records]
    assert "left unread" in line
