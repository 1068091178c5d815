"""Texts of JSON inside of requests and of answers: what cannot be written again is a text."""

import json
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.harness import HERMES
from tests.server.test_structure import TEMPLATES

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TALK = [{"role": "user", "content": "Hi"}]
# Values that Python reads of a text, or fails to, and that no UTF-8 with JSON has.
NO_JSON = {
    "deep": "[" * 1200 + "]" * 1200,
    "surrogate": '"\\ud800"',
    "surrogate-name": '{"\\udfff": 1}',
    "nan": "NaN",
    "infinite": "1e999",
    "long-number": "9" * 5000,
}
CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": %s}}\n</tool_call>',
    "llama_json": '{"name": "f", "parameters": {"a": %s}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": %s}}]',
    "pythonic": "[f(a=%s)]",
    "qwen_xml": "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n"
    "</tool_call>",
}
LARGE = {"max_model_len": 20_000, "num_blocks": 9000}


def _history(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    return [
        *TALK,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "s"},
    ]


def _items(arguments: str) -> list[dict[str, Any]]:
    return [
        *TALK,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "s"},
    ]


@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
def test_arguments_that_are_no_json_stay_a_text(serve: Serve, value: str) -> None:
    server = serve(["ok"], template=HERMES, **LARGE)
    text = f'{{"a": {value}}}'

    for path in (CHAT, f"{CHAT}/render", "/tokenize"):
        assert server.post(path, {"messages": _history(text)}).status == 200, path
    assert server.post(RESPONSES, {"input": _items(text)}).status == 200
    prompt = server.post(f"{CHAT}/render", {"messages": _history(text)}).json()["prompt"]

    assert f"(f{json.dumps(text)})" in prompt


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("value", NO_JSON.values(), ids=NO_JSON)
@pytest.mark.parametrize("dialect", CALLS)
def test_call_of_the_model_with_what_is_no_json_is_answered(
    serve: Serve, dialect: str, value: str, is_stream: bool
) -> None:
    server = serve([CALLS[dialect] % value], template=TEMPLATES[dialect], **LARGE)
    schema = {"type": "object", "properties": {"a": {}}}
    function = {"name": "f", "parameters": schema}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": TALK, "tools": [{"type": "function", "function": function}]},
        RESPONSES: {"input": "Hi", "tools": [{"type": "function", **function}]},
        MESSAGES: {"messages": TALK, "tools": [{"name": "f", "input_schema": schema}]},
    }
    for path, body in bodies.items():
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"

        reply = server.post(path, {**body, limit: 6000, "stream": is_stream})

        assert reply.status == 200
        assert reply.is_complete
        told = reply.data() if is_stream else [reply.json()]
        assert not any(part.get("error") for part in told)


def test_half_of_a_character_is_no_name_of_a_function(serve: Serve) -> None:
    call = '<tool_call>\n{"name": "\\ud800", "arguments": {}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "f"}}

    reply = serve([call], template=HERMES).chat(tools=[tool])

    assert reply.status == 200
    assert "tool_calls" not in reply.json()["choices"][0]["message"]
