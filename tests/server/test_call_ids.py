"""Ids of calls in histories, for templates that are strict about them."""

from typing import Any

import pytest

from tests.server.conftest import Serve

# As Mistral's own templates: an id of another length is refused.
STRICT = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}"
    "{{ c.id }}{% if c.id | length != 9 %}{{ raise_exception('9 letters!') }}{% endif %}"
    "{% endfor %}{% if m.role == 'tool' %}[RESULT]{{ m.tool_call_id }}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('9 letters!') }}{% endif %}"
    "{% endif %}{{ m.content }}{% endfor %}{# [TOOL_CALLS] #}"
)
CALL = '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]'
PARAMETERS = {"type": "object"}


def chat(call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "7"},
        ],
        "max_tokens": 5,
    }


@pytest.mark.parametrize("call_id", ["call_123", "é" * 9, "x" * 300, "abcDEF123"])
def test_history_with_ids_of_any_server_is_rendered(serve: Serve, call_id: str) -> None:
    server = serve(["Yes."], template=STRICT)

    assert server.post("/v1/chat/completions", chat(call_id)).status == 200
    ids = {server.post("/tokenize", chat(call_id)).json()["count"] for _ in range(2)}
    assert len(ids) == 1


def test_ids_that_a_template_takes_stay_and_a_call_and_its_result_have_one(serve: Serve) -> None:
    server = serve(["Yes."], template=STRICT)

    texts = [
        server.post("/v1/chat/completions/render", chat(call_id)).json()["prompt"]
        for call_id in ("abcDEF123", "call_123")
    ]

    assert "fabcDEF123" in texts[0]
    assert "[RESULT]abcDEF123" in texts[0]
    short = texts[1].partition("[TOOL_CALLS]f")[2][:9]
    assert texts[1].count(short) == 2


def test_messages_take_the_ids_that_they_have_given(serve: Serve) -> None:
    server = serve([CALL, "Yes."], template=STRICT)
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": PARAMETERS}],
        "max_tokens": 200,
    }
    call = server.post("/v1/messages", body).json()["content"][-1]
    assert call["type"] == "tool_use"

    body["messages"] += [
        {"role": "assistant", "content": [call]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "7"}],
        },
    ]
    assert server.post("/v1/messages", body).status == 200


def test_responses_take_the_ids_that_they_have_given(serve: Serve) -> None:
    server = serve([CALL, "Yes."], template=STRICT)
    body = {
        "input": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
        "max_output_tokens": 200,
    }
    call = server.post("/v1/responses", body).json()["output"][-1]
    assert call["type"] == "function_call"

    body["input"] += [
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "7"},
    ]
    assert server.post("/v1/responses", body).status == 200


@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_message_without_a_content_is_an_empty_one(serve: Serve, role: str) -> None:
    template = "{% for m in messages %}[{{ m['content'] + '|' }}]{% endfor %}"
    messages = [{"role": "user", "content": "Hi"}, {"role": role, "content": None}]
    server = serve(["Yes."], template=template)

    reply = server.post("/v1/chat/completions/render", {"messages": messages})

    assert reply.status == 200, reply.text
    assert reply.json()["prompt"] == "[Hi|][|]"
