"""Fields that are wrong or not supported: a 400 that names the field and what to do."""

from typing import Any

import pytest

from tests.server.conftest import Serve

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES, EMBEDDINGS = "/v1/responses", "/v1/messages", "/v1/embeddings"
TALK = [{"role": "user", "content": "Hi"}]
LONG = "x" * 257
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TALK, "max_tokens": 9},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 9},
    RESPONSES: {"input": "Hi", "max_output_tokens": 9},
    MESSAGES: {"messages": TALK, "max_tokens": 9},
    EMBEDDINGS: {"input": "Hi"},
}

# Route, what differs from a right body, param, what the message has.
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": []}, "messages", 'at least 1, got 0; send the conversation, such as [{"'),
    (CHAT, {"messages": None}, "messages", "expected a list, got null"),
    (CHAT, {"messages": [3]}, "messages[0]", "expected an object, got a number"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": 3}]},
        "messages[0].content",
        "expected a text or a list, got a number",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": 1}]}]},
        "messages[0].content[0].type",
        "expected a text, got a number",
    ),
    (CHAT, {"temperature": "1"}, "temperature", "expected a number, got a text"),
    (CHAT, {"n": 1.5}, "n", "expected an integer, got 1.5"),
    (CHAT, {"stop": 3}, "stop", "expected a text or a list, got a number"),
    (CHAT, {"tool_choice": "any"}, "tool_choice", "or 'required' or an object, got 'any'"),
    (CHAT, {"tools": [{"type": "custom"}]}, "tools[0].type", "expected 'function', got 'custom'"),
    (CHAT, {"thinking_token_budget": -1}, "thinking_token_budget", "at least 0, got -1"),
    (COMPLETIONS, {"prompt": {}}, "prompt", "expected a text or a list, got an object; send a"),
    (COMPLETIONS, {"prompt": ["a", 3]}, "prompt[1]", "expected a text or a list, got a number"),
    (COMPLETIONS, {"prompt": [[1, "a"]]}, "prompt[0][1]", "expected an integer, got a text"),
    (RESPONSES, {"input": 3}, "input", "got a number; send a text, or the conversation"),
    (MESSAGES, {"max_tokens": None}, "max_tokens", "expected an integer, got null"),
    (RESPONSES, {"tools": [{"type": "function", "name": LONG}]}, "tools[0].name", "at most 256"),
    (MESSAGES, {"tools": [{"name": ""}]}, "tools[0].name", "a text of at least 1, got 0"),
    (EMBEDDINGS, {"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
    ("/detokenize", {}, "tokens", "got nothing; send ids of tokens"),
    ("/abort", {}, "request_id", "got nothing; send the id of the answer"),
]

# Fields that OpenAI, vLLM or Anthropic know, with a value that asks for something.
EVERYWHERE: dict[str, Any] = {
    **{"use_beam_search": True, "length_penalty": 0.5, "truncate_prompt_tokens": 8},
    **{"logits_processors": ["x"], "request_id": "x", "kv_transfer_params": {"a": 1}},
}
UNSUPPORTED: list[tuple[str, str, Any]] = [
    *((route, name, value) for route in BODIES for name, value in EVERYWHERE.items()),
    (CHAT, "functions", [{"name": "f"}]),
    (CHAT, "function_call", {"name": "f"}),
    (CHAT, "modalities", ["text", "audio"]),
    (CHAT, "audio", {"voice": "alloy", "format": "wav"}),
    (CHAT, "web_search_options", {}),
    (CHAT, "echo", True),
    (CHAT, "add_special_tokens", True),
    (CHAT, "return_tokens_as_token_ids", True),
    (COMPLETIONS, "add_special_tokens", False),
    (COMPLETIONS, "prompt_embeds", "AAAA"),
    (COMPLETIONS, "suffix", "x"),
    (RESPONSES, "prompt", {"id": "p"}),
    (RESPONSES, "previous_response_id", "r"),
    (RESPONSES, "conversation", "c"),
    (RESPONSES, "background", True),
    (RESPONSES, "truncation", "auto"),
    (MESSAGES, "mcp_servers", [{"type": "url", "url": "x", "name": "y"}]),
    (MESSAGES, "container", "c"),
    (EMBEDDINGS, "embed_dtype", "float16"),
    (EMBEDDINGS, "add_special_tokens", False),
]

# Their defaults, and fields whose effect nobody can miss.
NOTHING_ASKED: list[tuple[str, dict[str, Any]]] = [
    *(
        (route, {"use_beam_search": False, "length_penalty": 1.0, "truncate_prompt_tokens": None})
        for route in BODIES
    ),
    (CHAT, {"functions": [], "function_call": "auto", "modalities": ["text"], "echo": False}),
    (CHAT, {"prediction": {"type": "content", "content": "x"}, "store": False, "user": "u"}),
    (CHAT, {"stream_options": None, "add_special_tokens": False}),
    (COMPLETIONS, {"add_special_tokens": True, "suffix": None, "best_of": 1}),
    (RESPONSES, {"max_tool_calls": 3, "truncation": "disabled", "background": False}),
    (MESSAGES, {"mcp_servers": [], "service_tier": "auto"}),
    (EMBEDDINGS, {"embed_dtype": "float32", "endianness": "little"}),
]


# Route, the field that has messages, and the roles that are taken there.
ROLES: list[tuple[str, str, str]] = [
    *(
        (path, "messages", "'system', 'developer', 'user', 'assistant', 'tool' or 'function'")
        for path in (CHAT, f"{CHAT}/render", "/tokenize")
    ),
    *(
        (path, "messages", "'user', 'assistant' or 'system'")
        for path in (MESSAGES, f"{MESSAGES}/count_tokens")
    ),
    (RESPONSES, "input", "'system', 'developer', 'user' or 'assistant'"),
]


def message_of(reply: Any) -> str:
    return str(reply.json()["error"]["message"])


def test_wrong_fields_are_told_in_plain_words(serve: Serve) -> None:
    server = serve()
    for path, fields, param, text in WRONG:
        reply = server.post(path, {**BODIES.get(path, {}), **fields})

        assert reply.status == 400, (path, fields)
        assert text in message_of(reply), message_of(reply)
        assert message_of(reply).startswith(f"[request] {param}: expected ")
        if path != MESSAGES:
            assert reply.json()["error"]["param"] == param


def test_unknown_role_is_refused_on_every_route_with_those_that_are_taken(serve: Serve) -> None:
    server = serve()
    for path, name, roles in ROLES:
        messages = [*TALK, {"role": "assistant", "content": "a"}, {"role": "robot", "content": "b"}]
        reply = server.post(path, {**BODIES.get(path, {}), name: messages})

        assert reply.status == 400, path
        assert message_of(reply) == (f"[request] {name}[2].role: expected {roles}, got 'robot'")


def test_fields_that_are_not_supported_are_refused_by_name(serve: Serve) -> None:
    server = serve()
    for path, name, value in UNSUPPORTED:
        reply = server.post(path, {**BODIES[path], name: value})

        assert reply.status == 400, (path, name)
        assert name in message_of(reply)
        if path != MESSAGES:
            assert reply.json()["error"]["param"] == name
            assert reply.json()["error"]["code"] == "unsupported_parameter"


@pytest.mark.parametrize(("path", "fields"), NOTHING_ASKED)
def test_defaults_of_what_is_not_supported_are_taken_without_a_word(
    serve: Serve, path: str, fields: dict[str, Any]
) -> None:
    reply = serve().post(path, {**BODIES[path], **fields})

    assert reply.status == 200, reply.text
    assert "warnings" not in reply.json()
