"""Fields that are wrong or not supported: a 400 that names the field and what to do."""

from typing import Any

import pytest

from pyvt.server.anthropic.schema import MessagesRequest
from pyvt.server.fields import RequestModel
from pyvt.server.openai.responses_schema import ResponsesRequest
from pyvt.server.openai.schema import ChatRequest, CompletionRequest
from pyvt.server.unsupported import UNSUPPORTED as UNSUPPORTED_ANYWHERE
from tests.server.conftest import Serve
from tests.server.harness import HERMES

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
    *((MESSAGES, name, 2) for name in ("n", "best_of", "prompt_logprobs", "max_output_tokens")),
    (MESSAGES, "stop", "x"),
    (MESSAGES, "parallel_tool_calls", False),
    (MESSAGES, "thinking_token_budget", 5),
    (MESSAGES, "reasoning_effort", "low"),
    (MESSAGES, "response_format", {"type": "json_object"}),
    (MESSAGES, "return_token_ids", True),
    *((RESPONSES, name, 2) for name in ("n", "best_of", "prompt_logprobs", "max_tokens")),
    (RESPONSES, "response_format", {"type": "json_object"}),
    (RESPONSES, "return_token_ids", True),
    (RESPONSES, "system", "x"),
    (COMPLETIONS, "tools", [{"type": "function", "function": {"name": "f"}}]),
    (COMPLETIONS, "tool_choice", "required"),
    (COMPLETIONS, "thinking_token_budget", 5),
    (COMPLETIONS, "max_completion_tokens", 5),
    (COMPLETIONS, "system", "x"),
    (CHAT, "thinking", {"type": "enabled", "budget_tokens": 1024}),
    (CHAT, "system", "x"),
    (CHAT, "stop_sequences", ["x"]),
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
    (MESSAGES, {"mcp_servers": [], "service_tier": "auto", "n": 1, "stop": None}),
    (RESPONSES, {"n": 1, "best_of": 1, "return_token_ids": False, "max_tokens": None}),
    (COMPLETIONS, {"tools": [], "tool_choice": "none", "max_completion_tokens": None}),
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


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
SAID = {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": SAID["content"]}
# Route, what differs from a right body, and the place of what the model does not read.
NOT_READ: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": [*TALK, SAID]}, "messages[1].content[1]"),
    (f"{CHAT}/render", {"messages": [*TALK, SAID]}, "messages[1].content[1]"),
    ("/tokenize", {"messages": [SAID]}, "messages[0].content[1]"),
    (RESPONSES, {"input": [*TALK, SAID], "instructions": "x"}, "input[1].content[1]"),
    (
        *(RESPONSES, {"input": [{"type": "function_call_output", "output": SAID["content"]}]}),
        "input[0].output[1]",
    ),
    (RESPONSES, {"input": [*TALK, {"type": "computer_call"}]}, "input[1].type"),
    (
        RESPONSES,
        {"tools": [{"type": "function", "name": "f"}, {"type": "function"}]},
        "tools[1].name",
    ),
    (MESSAGES, {"messages": [*TALK, SAID], "system": "x"}, "messages[1].content[1]"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [RESULT]}]},
        "messages[0].content[0].content[1]",
    ),
    (MESSAGES, {"system": SAID["content"]}, "system[1]"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}, {"name": "g"}]}, "tools[1]"),
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


@pytest.mark.parametrize(("path", "fields", "place"), NOT_READ)
def test_what_the_model_does_not_read_is_refused_by_its_place(
    serve: Serve, path: str, fields: dict[str, Any], place: str
) -> None:
    reply = serve().post(path, {**BODIES.get(path, {}), **fields})

    assert reply.status == 400, reply.text
    assert message_of(reply).startswith(f"[request] {place}: expected ")
    if path != MESSAGES:
        assert reply.json()["error"]["param"] == place


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


# What a route names in another way: the remedy, and a field that has the effect.
RENAMED: list[tuple[str, str, Any, str]] = [
    (MESSAGES, "stop", "x", "on this route it is called stop_sequences"),
    (MESSAGES, "response_format", {"type": "json_object"}, "called output_config.format"),
    (MESSAGES, "reasoning_effort", "low", "called output_config.effort"),
    (MESSAGES, "parallel_tool_calls", False, "called tool_choice.disable_parallel_tool_use"),
    (COMPLETIONS, "max_completion_tokens", 5, "called max_tokens"),
    (COMPLETIONS, "system", "x", "ask POST /v1/chat/completions"),
    (RESPONSES, "max_tokens", 5, "called max_output_tokens"),
    (RESPONSES, "system", "x", "called instructions"),
    (CHAT, "system", "x", "send a message of the role system"),
]


@pytest.mark.parametrize(("path", "name", "value", "remedy"), RENAMED)
def test_field_of_another_route_is_refused_with_its_name_here(
    serve: Serve, path: str, name: str, value: Any, remedy: str
) -> None:
    reply = serve().post(path, {**BODIES[path], name: value})

    assert reply.status == 400
    assert remedy in message_of(reply)


MODELS = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
# Whose effect there is in any case.
MISSED_BY_NOBODY = frozenset({"stream_options"})


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_of_another_route_is_known_or_refused(model: type[RequestModel]) -> None:
    fields = {name for other in MODELS for name in other.model_fields}
    known = {*model.model_fields, *model.unsupported, *UNSUPPORTED_ANYWHERE, *MISSED_BY_NOBODY}

    assert fields - known == set()
    assert model.model_fields.keys() & model.unsupported.keys() == set()


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        (RESPONSES, "guided_json", "structured_outputs"),
        (MESSAGES, "guided_json", "structured_outputs"),
        (RESPONSES, "json_schema", "text"),
        (MESSAGES, "thinking_budget", "thinking"),
        (RESPONSES, "num_predict", "max_output_tokens"),
        (CHAT, "num_ctx", "--max-model-len of the server"),
    ],
)
def test_hint_names_a_field_of_the_route(serve: Serve, path: str, name: str, near: str) -> None:
    told = serve().post(path, {**BODIES[path], name: 5}).json()["warnings"]

    assert told == [f"{name!r} is unknown and had no effect; did you mean {near!r}?"]


def test_hint_is_no_field_that_the_route_does_not_have(serve: Serve) -> None:
    (told,) = serve().post(EMBEDDINGS, {"input": "Hi", "guided_json": {}}).json()["warnings"]

    assert told == "'guided_json' is unknown and had no effect"


TWICE = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "f")]
OF_CHAT = {"messages": TALK, "tools": TWICE}
TWO_OF_ONE_NAME: list[tuple[str, dict[str, Any], str]] = [
    *((path, OF_CHAT, "tools[2].function.name") for path in (CHAT, f"{CHAT}/render", "/tokenize")),
    (CHAT, {**OF_CHAT, "tool_choice": "none"}, "tools[2].function.name"),
    (RESPONSES, {"input": "Hi", "tools": [{**t, **t["function"]} for t in TWICE]}, "tools[2].name"),
    *(
        (path, {**BODIES[MESSAGES], "tools": tools}, "tools[2].name")
        for tools in [[{**tool["function"], "input_schema": {}} for tool in TWICE]]
        for path in (MESSAGES, f"{MESSAGES}/count_tokens")
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), TWO_OF_ONE_NAME)
def test_two_tools_of_one_name_are_refused_by_the_place_of_the_second(
    serve: Serve, path: str, body: dict[str, Any], param: str
) -> None:
    reply = serve(template=HERMES).post(path, body)

    assert reply.status == 400, reply.text
    assert message_of(reply).startswith(f"[request] {param}: expected a name of its own, got 'f'")
    if not path.startswith(MESSAGES):
        assert reply.json()["error"]["param"] == param


INTERNAL: dict[str, Any] = {
    **{"begin_after": "</think>", "text_ends": ["x"], "free_text": True},
    "close_within_budget": False,
}


@pytest.mark.parametrize("name", INTERNAL)
def test_settings_of_a_form_that_are_not_of_requests_are_unknown(serve: Serve, name: str) -> None:
    server = serve()
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        asked = {**BODIES[path], "structured_outputs": {"regex": "a", name: INTERNAL[name]}}

        reply = server.post(path, asked)
        unknown = server.post(path, {**asked, "structured_outputs": {"regex": "a", "x": 1}})

        assert reply.status == unknown.status == 400
        assert message_of(reply) == message_of(unknown).replace("'x'", repr(name))
        assert not any(other in message_of(unknown) for other in INTERNAL)
