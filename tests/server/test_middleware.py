"""Keys, hosts, origins, ids and the log."""

import asyncio
import itertools
import json
import logging
import threading
from typing import Any

import pytest

from pyvt.server.middleware import PUBLIC_PATHS
from pyvt.server.routes import ROUTES
from tests.server.conftest import Serve

KEYS = {"config": {"api_key": ("first-key", "second-key")}}
PATHS = [(row.method, row.path.replace("{model:path}", "tiny")) for row in ROUTES]
ODD_PATHS = [
    *("//v1/models", "/V1/models", "/v1/models/", "/v1/../v1/models", "/%76%31/models"),
    *("/health/", "/version/../metrics", "/nothing", "/docs", "/v1"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_route_needs_a_key_unless_it_is_public(serve: Serve, method: str, path: str) -> None:
    server = serve(**KEYS)

    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "first-key"}):
        reply = (
            server.post(path, {}, headers=headers)
            if method == "POST"
            else server.get(path, headers=headers)
        )
        assert (reply.status == 401) == (path not in PUBLIC_PATHS)
        if reply.status == 401:
            assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT"])
@pytest.mark.parametrize("path", ODD_PATHS)
def test_no_spelling_of_a_path_goes_around_the_key(serve: Serve, path: str, method: str) -> None:
    server = serve(**KEYS)

    assert asyncio.run(server.ask(method, path)).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
    ],
)
def test_any_of_the_keys_opens(serve: Serve, headers: dict[str, str]) -> None:
    assert serve(**KEYS).get("/v1/models", headers=headers).status == 200


def test_wrong_key_answers_in_openai_shape(serve: Serve) -> None:
    error = serve(**KEYS).get("/v1/models", headers={"x-api-key": "no"}).json()["error"]

    assert error["code"] == "invalid_api_key"
    assert "no" not in error["message"].split()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("app.localhost", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("192.168.1.7:8000", 200),
        ("my-box:8000", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_only_known_names_are_hosts(serve: Serve, host: str, status: int) -> None:
    server = serve(config={"allowed_hosts": ("my-box",)})

    assert server.get("/v1/models", headers={"host": host}).status == status


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1:5173", True),
        ("https://my.app", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
    ],
)
def test_pages_of_known_origins_may_read(serve: Serve, origin: str, is_allowed: bool) -> None:
    server = serve(**{"config": {**KEYS["config"], "allowed_origins": ("https://my.app",)}})
    asks = {"origin": origin, "access-control-request-method": "POST"}

    preflight = asyncio.run(server.ask("OPTIONS", "/v1/chat/completions", headers=asks))
    answer = server.get("/health", headers={"origin": origin})

    assert preflight.status == (204 if is_allowed else 401)
    for reply in (preflight, answer):
        marked = reply.headers.get("access-control-allow-origin")
        assert marked == (origin if is_allowed else None)


def test_request_id_goes_in_and_out(serve: Serve) -> None:
    server = serve()

    reply = server.chat(headers=None)
    named = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}]},
        headers={"x-request-id": "my-id.7"},
    )
    odd = server.get("/health", headers={"x-request-id": "a\nb: c"})

    assert reply.json()["id"] == f"chatcmpl-{reply.headers['x-request-id']}"
    assert named.headers["x-request-id"] == "my-id.7"
    assert named.json()["id"] == "chatcmpl-my-id.7"
    assert "\n" not in odd.headers["x-request-id"]


def test_log_has_a_line_without_the_prompt(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(config={"disable_uvicorn_access_log": False})

    server.chat("my secret")
    server.get("/health")

    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["path"] == "/v1/chat/completions"
    assert json.loads(line)["status"] == 200
    assert "secret" not in line
    assert "Paris" not in line


def test_unknown_path_and_method_answer_as_json(serve: Serve) -> None:
    server = serve()

    missing, wrong = server.get("/v1/nothing"), server.get("/v1/chat/completions")

    assert (missing.status, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_fault_of_ours_is_500_that_tells_nothing_of_the_code(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
    is_stream: bool,
) -> None:
    server = serve()
    asked = {**body, "stream": is_stream}

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"secret of {__file__}")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr("pyvt.server.state.ServerState.start", broken)
        failed = server.post(path, asked, headers={"x-request-id": "broken-1"})
    after = server.post(path, asked)

    assert failed.status == 500
    assert failed.headers["x-request-id"] == "broken-1"
    assert failed.json()["error"]["message"]
    assert not any(word in failed.text for word in ("secret", "/", "Traceback", "Runtime", ".py"))
    assert "broken-1" in caplog.text
    assert "secret of" in caplog.text, "whoever runs the server can see why"
    assert after.status == 200


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_request_is_aborted_by_its_own_key_alone(serve: Serve, num_prompts: int) -> None:
    is_aborted, steps = threading.Event(), itertools.count()

    def wait_for_abort(_: Any) -> None:
        assert next(steps) < 9 or is_aborted.wait(60), "nobody aborted"

    server = serve(["x" * 350], before_step=wait_for_abort, **KEYS)
    first, second = ({"x-api-key": f"{name}-key"} for name in ("first", "second"))
    told: list[Any] = []

    async def abort(reply: Any) -> None:
        if len(reply.chunks) == 3:
            for headers in (second, first):
                asked = {"request_id": "cmpl-mine"}
                done = await server.ask("POST", "/abort", asked, headers=headers)
                told.append(done.json())
            unknown = {"request_id": "cmpl-none"}
            told.append((await server.ask("POST", "/abort", unknown, headers=first)).json())
            is_aborted.set()

    body = {"prompt": ["Hi"] * num_prompts, "max_tokens": 350, "stream": True}
    headers = {**first, "x-request-id": "mine"}
    reply = server.post("/v1/completions", body, headers=headers, gate=abort)

    of_another, own, unknown = told
    assert own == {"request_id": "cmpl-mine", "aborted": True}
    assert of_another == {**unknown, "request_id": "cmpl-mine"}
    assert not of_another["aborted"]
    assert reply.data()[-1]["error"]["code"] == "aborted"


# What a page of any origin may send without being asked for, and what comes of it.
FROM_PAGES: list[tuple[dict[str, str], bytes | None, int]] = [
    ({"origin": "https://evil.example"}, None, 415),
    ({"origin": "null", "content-length": "0"}, None, 415),
    ({"sec-fetch-site": "cross-site"}, None, 415),
    ({"content-type": "text/plain"}, b"{}", 415),
    ({"content-type": "application/x-www-form-urlencoded"}, b"a=b", 415),
    ({"content-type": "text/plain", "content-length": "0"}, None, 415),
    ({"content-length": "2"}, None, 415),
    ({"transfer-encoding": "chunked"}, None, 415),
    ({"content-type": "application/json"}, b"{", 400),
    ({"content-type": "application/json"}, b"{}", 200),
    ({"content-type": "application/json", "origin": "http://localhost:3000"}, b"{}", 200),
    ({}, None, 200),
    ({"content-length": "0"}, None, 200),
]


@pytest.mark.parametrize(("headers", "body", "status"), FROM_PAGES)
def test_prefix_cache_is_reset_by_no_page_that_was_not_asked_for(
    serve: Serve, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    server = serve()
    server.chat("a" * 40)

    reply = server.post("/reset_prefix_cache", body, headers=headers)
    rest = server.post("/reset_prefix_cache", None).json()["num_blocks"]

    assert reply.status == status
    assert (rest == 0) == (status == 200)


def test_unix_socket_is_asked_by_any_host(serve: Serve) -> None:
    headers = {"host": "x"}

    assert serve(config={"uds": "s.sock"}).get("/health", headers=headers).status == 200
    assert serve().get("/health", headers=headers).status == 403
