"""Cached prefixes: told in the usage, and never shared between keys or salts, on any route."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import Server

TEXT = "one two three four five six seven"
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}),
    "completions": ("/v1/completions", {"prompt": TEXT}),
    "responses": ("/v1/responses", {"input": TEXT}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 50},
    ),
}


def num_cached(server: Server, route: str, key: str = "a", **fields: Any) -> int:
    """Return how many tokens of the prompt a route says were cached."""
    path, body = ROUTES[route]
    reply = server.post(path, {**body, **fields}, headers={"x-api-key": key})
    assert reply.status == 200, reply.text
    usage = reply.json()["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if details is not None:
        return int(details["cached_tokens"])
    return int(usage["cache_read_input_tokens"])


@pytest.mark.parametrize("route", ROUTES)
def test_prefix_is_shared_within_a_key_and_salt_alone(serve: Serve, route: str) -> None:
    server = serve(config={"api_key": ("a", "b")})

    cold = num_cached(server, route)
    warm = num_cached(server, route)

    assert cold == 0
    assert warm > 0
    assert num_cached(server, route, key="b") == 0
    assert num_cached(server, route, cache_salt="x") == 0
    assert num_cached(server, route, cache_salt="x") == warm
    assert num_cached(server, route, cache_salt="y") == 0
    assert num_cached(server, route, key="b", cache_salt="x") == 0


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("salt", ["", "x" * 257, "a\0b", 3, ["x"]])
def test_odd_salt_is_refused(serve: Serve, route: str, salt: Any) -> None:
    path, body = ROUTES[route]

    reply = serve().post(path, {**body, "cache_salt": salt})

    assert reply.status == 400
    assert "cache_salt" in reply.json()["error"]["message"]


def test_last_token_of_a_prompt_is_never_cached(serve: Serve) -> None:
    server = serve()
    num_cached(server, "completions")

    usage = server.post("/v1/completions", ROUTES["completions"][1]).json()["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_prefix_cache_can_be_reset_and_is_counted(serve: Serve) -> None:
    server = serve()
    num_cached(server, "completions")
    hits = num_cached(server, "completions")

    before = server.metrics()
    reset = server.post("/reset_prefix_cache", None)

    assert before["prefix_cache_hits_total"] == hits
    assert before["prompt_tokens_cached_total"] == hits
    assert reset.json()["num_blocks"] > 0
    assert num_cached(server, "completions") == 0


def test_render_tells_what_a_request_would_find(serve: Serve) -> None:
    server = serve(config={"api_key": ("a", "b")})
    path, chat = ROUTES["chat"]

    def estimate(key: str = "a", **fields: Any) -> int:
        asked = {**chat, **fields}
        reply = server.post(f"{path}/render", asked, headers={"x-api-key": key})
        return int(reply.json()["cached_tokens"])

    cold = estimate()
    num_cached(server, "chat")
    warm = estimate()

    assert cold == 0
    assert warm == num_cached(server, "chat") > 0
    assert estimate(key="b") == 0
    assert estimate(cache_salt="x") == 0
