"""Anthropic's messages: shapes, events, and their translation into a chat."""

from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import HERMES, THINKING, Reply, Server

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
FULL = f"<think>\nhm\n</think>\n\nSo {CALL}"
HI = [{"role": "user", "content": "Hi"}]


def ask(server: Server, **fields: Any) -> Reply:
    """Ask for a message."""
    return server.post("/v1/messages", {"messages": HI, "max_tokens": 200, **fields})


def without_ids(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return blocks without the random ids of calls, which are checked here."""
    for block in content:
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_")
    return content


def joined(reply: Reply) -> dict[str, Any]:
    """Return the message of a stream as a client puts it together."""
    names = [e.removeprefix("event: ") for e in reply.text.split("\n") if e.startswith("event: ")]
    events = reply.data()
    assert names == [event["type"] for event in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    open_index = None
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                open_index = event["index"]
                assert open_index == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert event["index"] == open_index
                delta = event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
                if name is None:
                    message["content"][-1]["json"] += delta["partial_json"]
                else:
                    message["content"][-1][name] += delta[name]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
            case other:
                raise AssertionError(other)
    assert open_index is None
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str | None]] = {
    "text": ({"answers": ["Paris."]}, {}, "end_turn", None),
    "cut": ({"answers": ["Paris."]}, {"max_tokens": 2}, "max_tokens", None),
    "stop": ({"answers": ["a END b"]}, {"stop_sequences": ["END"]}, "stop_sequence", "END"),
    "tools": ({"answers": [FULL], "template": THINKING}, {"tools": [TOOL]}, "tool_use", None),
    "stop_after_reasoning": (
        {"answers": ["<think>END</think>a END"], "template": THINKING},
        {"stop_sequences": ["END"]},
        "stop_sequence",
        "END",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message_whole_and_streamed(serve: Serve, name: str) -> None:
    settings, fields, reason, sequence = CASES[name]
    server = serve(**settings)

    whole = ask(server, **fields).json()
    server.forget()
    stream = joined(ask(server, stream=True, **fields))

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert (stream["stop_reason"], stream["stop_sequence"]) == (reason, sequence)
    assert stream["usage"] == whole["usage"]
    for block in stream["content"]:
        text = block.pop("json")
        assert block["type"] != "tool_use" or text == '{"a": 1}'
        if block["type"] == "tool_use":
            block["input"] = {"a": 1}
    assert without_ids(stream["content"]) == without_ids(whole["content"])


def test_blocks_stand_in_the_order_of_the_text(serve: Serve) -> None:
    body = ask(serve([FULL], template=THINKING), tools=[TOOL]).json()

    assert without_ids(body["content"]) == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "name": "f", "input": {"a": 1}},
    ]


def test_history_becomes_a_chat(serve: Serve) -> None:
    seen: list[str] = []
    server = serve(
        template=HERMES,
        before_step=lambda step: seen.extend(
            bytes(new.prompt_token_ids).decode() for new in step.new_requests
        ),
    )
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "A"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "5"},
                {"type": "text", "text": "and?"},
            ],
        },
    ]

    assert ask(server, messages=messages, system=[{"type": "text", "text": "Be"}]).status == 200
    assert seen == ['[system]Be[user]Q[assistant]A(f{"x": 2})[tool]5[user]and?[assistant]']


def test_last_message_of_the_assistant_is_continued(serve: Serve) -> None:
    messages = [*HI, {"role": "assistant", "content": "The capital"}]

    reply = serve().post("/v1/messages/count_tokens", {"messages": messages})

    assert reply.json() == {"input_tokens": len("[user]Hi[assistant]The capital")}


def test_thinking_can_be_turned_off(serve: Serve) -> None:
    server = serve(template=THINKING)
    tokens = [
        server.post("/v1/messages/count_tokens", {"messages": HI, "thinking": thinking}).json()
        for thinking in (None, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 5})
    ]

    off = len("<think>\n\n</think>\n\n")
    assert tokens[1]["input_tokens"] - tokens[0]["input_tokens"] == off
    assert tokens[2] == tokens[0]


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"model": "claude"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "robot", "content": "a"}]}, 400, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
        ),
        ({"tools": [{"name": "x", "type": "bash_20250124"}]}, 400, "invalid_request_error"),
    ],
)
def test_errors_have_anthropic_shape(
    serve: Serve, fields: dict[str, Any], status: int, kind: str
) -> None:
    reply = ask(serve(template=HERMES), **fields)

    assert reply.status == status
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == kind


def test_failure_inside_a_stream_is_an_error_event(serve: Serve) -> None:
    reply = serve(failing=frozenset({"msg_bad"})).post(
        "/v1/messages",
        {"messages": HI, "max_tokens": 9, "stream": True},
        headers={"x-request-id": "bad"},
    )

    assert reply.data()[-1]["type"] == "error"
    assert reply.text.count("event: error\n") == 1
