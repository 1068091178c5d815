"""Forced calls that end too early: no mark of them is content, and the end is told as it was."""

import json
from typing import Any

import pytest

from pyvt.server.answer.events import CallArguments, CallStart, Content, merged
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.tool_parsers import TOOL_DIALECTS
from tests.server.conftest import Serve
from tests.server.harness import Reply, Server
from tests.server.openai.test_chat import joined, whole
from tests.server.test_structure import DIALECTS, TEMPLATES

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
OBJECT = '{"name": "get_weather", "arguments": {"city": "Ulm", "days": 12}}'
CALLS = {
    "hermes": f"<tool_call>\n{OBJECT}\n</tool_call>",
    "qwen_xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nUlm\n</parameter>\n"
    "<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>",
    "llama_json": OBJECT.replace("arguments", "parameters"),
    "mistral": f"[TOOL_CALLS][{OBJECT}]",
    "mistral_named": '[TOOL_CALLS]get_weather[CALL_ID]abcdefgh1[ARGS]{"city": "Ulm", "days": 12}',
    "pythonic": '[get_weather(city="Ulm", days=12)]',
    "pythonic_tags": '<|tool_call_start|>[get_weather(city="Ulm", days=12)]<|tool_call_end|>',
}
WHOLE = '{"city": "Ulm", "days": 12}'


def form_of(template: str) -> AnswerFormat:
    name = template.split("_n")[0].split("_tags")[0]
    schemas = {"get_weather": SCHEMA}
    return AnswerFormat(dialect=TOOL_DIALECTS[name], tools=schemas, is_call_alone=True)


@pytest.mark.parametrize("template", DIALECTS)
def test_forced_call_that_is_cut_anywhere_leaves_no_content(template: str) -> None:
    text = CALLS[template]
    for size in range(len(text) + 1):
        told = []
        for pieces in ([text[:size]], text[:size]):
            parser = form_of(template).parser()
            events = [event for piece in pieces for event in parser.push(piece)]
            told.append((merged([*events, *parser.finish()]), parser.is_call_cut))

        events, is_cut = told[0]
        assert told[1] == told[0], text[:size]
        assert not any(isinstance(event, Content) for event in events), text[:size]
        arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
        assert is_cut == (CallStart(0, "get_weather") in events and arguments != WHOLE), text[:size]
        assert WHOLE.startswith(arguments)
    assert arguments == WHOLE


# What the stop string begins with, and what is left of the call: None for no call at all.
STOPS: dict[str, list[tuple[str, str | None]]] = {
    "hermes": [
        *(("_call>", None), ('"get_', None), ("lm", '{"city": "U'), ("12}", WHOLE[:-3])),
        ("\n</tool", WHOLE),
    ],
    "qwen_xml": [
        *(("_call>", None), ("_weather", None), ("meter=c", ""), ("lm", '{"city": "U')),
        *(("12\n", WHOLE[:-3]), ("function>\n</", WHOLE[:-1]), ("</tool_", WHOLE)),
    ],
    "llama_json": [('"get_', None), ("lm", '{"city": "U'), ("12}", WHOLE[:-3]), ("}}", WHOLE[:-1])],
    "mistral": [("CALLS]", None), ('"get_', None), ("lm", '{"city": "U'), ("]", None)],
    "mistral_named": [("CALLS]", None), ("[ARGS]", None), ("lm", '{"city": "U')],
    "pythonic": [("_weather", None), ("lm", ""), ("12", '{"city": "Ulm"'), ("]", WHOLE)],
    "pythonic_tags": [("all_st", None), ("_weather", None), ("lm", ""), ("|tool_call_e", WHOLE)],
}


def asked(server: Server, **fields: Any) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Return content, calls and end of an answer whole and streamed."""
    body = {"tools": [TOOL], "tool_choice": "required", **fields}
    replies = (whole(server.chat(**body)), joined(server.chat(**body, stream=True)))
    told = []
    for (choice,) in replies:
        calls = [(call["name"], call["arguments"]) for call in choice["calls"]]
        told.append((choice["content"], calls, choice["finish_reason"]))
    return told


@pytest.mark.parametrize("template", DIALECTS)
def test_stop_string_inside_a_forced_call_ends_it_without_its_marks(
    serve: Serve, template: str
) -> None:
    server = serve([CALLS[template]], template=TEMPLATES[template])
    for stop, arguments in STOPS[template]:
        calls = [] if arguments is None else [("get_weather", arguments)]
        end = "tool_calls" if arguments == WHOLE else "stop"

        assert asked(server, stop=stop) == [("", calls, end)] * 2, stop


@pytest.mark.parametrize("template", DIALECTS)
def test_forced_call_that_max_tokens_cuts_keeps_what_it_has(serve: Serve, template: str) -> None:
    text = CALLS[template].replace("Ulm", "U" * 150)
    server = serve([text], template=TEMPLATES[template])

    plain, streamed = asked(server, max_tokens=140)

    content, ((name, arguments),), end = plain
    assert streamed == plain
    assert (content, name, end) == ("", "get_weather", "length")
    assert json.dumps({"city": "U" * 150, "days": 12}).startswith(arguments)
    assert ("UUU" in arguments) != template.startswith("pythonic")


def test_stop_string_inside_a_forced_call_leaves_the_reasoning_alone(serve: Serve) -> None:
    server = serve(['hm "get_ it\n</think>\n\n' + CALLS["hermes"]], template=TEMPLATES["thinking"])
    body = {"tools": [TOOL], "tool_choice": "required", "stop": '"get_'}

    for (choice,) in (whole(server.chat(**body)), joined(server.chat(**body, stream=True))):
        assert choice["reasoning"] == 'hm "get_ it'
        assert (choice["content"], choice["calls"], choice["finish_reason"]) == ("", [], "stop")


def test_text_of_a_free_call_that_is_cut_is_not_lost(serve: Serve) -> None:
    server = serve([CALLS["hermes"]], template=TEMPLATES["hermes"])

    told = asked(server, tool_choice="auto", stop='"get_')

    assert told == [('<tool_call>\n{"name": ', [], "stop")] * 2


def test_whole_message_without_content_has_null(serve: Serve) -> None:
    server = serve([CALLS["hermes"]], template=TEMPLATES["hermes"])
    body = {"tools": [TOOL], "tool_choice": "required", "stop": '"get_'}

    message = server.chat(**body).json()["choices"][0]["message"]

    assert message == {"role": "assistant", "content": None, "refusal": None}


def _of_response(reply: Reply) -> tuple[str, list[Any]]:
    body = reply.json()
    return body["status"], [(item["arguments"], item["status"]) for item in body["output"]]


def _of_message(reply: Reply) -> tuple[str, list[Any]]:
    body = reply.json()
    return body["stop_reason"], [block["input"] for block in body["content"]]


# Route, its body, what is read of the answer, and what that is by the stop string.
ROUTES: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = [
    (
        "/v1/responses",
        {
            "input": "Hi",
            "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}],
            "tool_choice": "required",
        },
        _of_response,
        {
            '"get_': ("completed", []),
            "lm": ("completed", [('{"city": "U', "incomplete")]),
            "\n</tool": ("completed", [(WHOLE, "completed")]),
        },
    ),
    (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 200,
            "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
        _of_message,
        {
            '"get_': ("stop_sequence", []),
            "lm": ("stop_sequence", [{"partial_json": '{"city": "U'}]),
            "\n</tool": ("stop_sequence", [json.loads(WHOLE)]),
        },
    ),
]


@pytest.mark.parametrize(("path", "body", "read", "expected"), ROUTES)
def test_other_routes_tell_cut_calls_in_their_own_words(
    serve: Serve, path: str, body: dict[str, Any], read: Any, expected: dict[str, Any]
) -> None:
    server = serve([CALLS["hermes"]], template=TEMPLATES["hermes"])
    for stop, told in expected.items():
        stops = {"stop_sequences": [stop]} if path == "/v1/messages" else {"stop": stop}

        assert read(server.post(path, {**body, **stops})) == told
