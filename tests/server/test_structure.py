"""Texts of a form that was asked for: the model is random, so what is right was enforced."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.server.app import create_app
from pyvt.server.state import ServerState
from pyvt.tokenizer import ChatTemplate
from tests.engine.tiny_model import write_tiny_model
from tests.server.conftest import Serve
from tests.server.harness import HERMES, PLAIN, Client, Reply
from tests.server.openai.test_chat import joined, whole

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
WHOLE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"type": "function", "function": {"name": "g"}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": 'd "\n</tool_call>'}},
    {"type": "function", "function": {"name": "g", "parameters": WHOLE}},
]
TEMPLATES = {
    "hermes": HERMES,
    "qwen_xml": PLAIN + "{# <function= <parameter= <tool_call> #}",
    "llama_json": PLAIN + '{# "parameters": <|python_tag|> #}',
    "thinking": HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}",
    "plain": PLAIN,
    "mistral": PLAIN + "{# [TOOL_CALLS] #}",
    "mistral_named": PLAIN + "{# [TOOL_CALLS] [CALL_ID] [ARGS] #}",
    "pythonic": PLAIN + "{# [func_name1(params_name1=1)] #}",
    "pythonic_tags": PLAIN + "{# <|tool_call_start|>[f()]<|tool_call_end|> #}",
}
# Tokens that a call of ``g`` needs, a byte each, and some to spare.
ROOM = {"hermes": 72, "llama_json": 54}
DIALECTS = tuple(name for name in TEMPLATES if name not in ("thinking", "plain"))
RICH = {
    "type": "object",
    "properties": {
        "may": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
        "must": {"type": "integer", "minimum": 0, "maximum": 9},
        "list": {"type": "array", "items": {"$ref": "#/$defs/bit"}, "maxItems": 2},
        "note": {"type": "string", "minLength": 1, "maxLength": 3},
        "code": {"type": "string", "pattern": "^[A-C]{2}"},
    },
    "required": ["must", "note", "code"],
    "additionalProperties": False,
    "$defs": {"bit": {"enum": [0, 1]}},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    """A tiny random model."""
    path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=256)
    found = AsyncLLM(str(path))
    yield found
    found.thread.shutdown()


class Tiny(Client):
    """A server of the tiny model with the chat template of a dialect."""

    def __init__(self, llm: AsyncLLM, template: str) -> None:
        processor = llm.engine.input_processor
        made = ChatTemplate.for_tokenizer({"default": TEMPLATES[template]}, processor.tokenizer)
        processor._chat_template = lambda: made
        state = ServerState(config=ServerConfig(disable_uvicorn_access_log=True), names=("tiny",))
        state.attach(llm)
        self.room = ROOM.get(template, 90)
        super().__init__(create_app(state))

    def chat(self, **fields: Any) -> Reply:
        message = {"role": "user", "content": "Hi"}
        body = {"messages": [message], "max_tokens": self.room, "seed": 1}
        return self.post("/v1/chat/completions", {**body, **fields})


def _content(reply: Reply) -> str:
    (choice,) = whole(reply)
    assert choice["calls"] == []
    return str(choice["content"])


FORM_SCHEMAS = {"json_schema": SCHEMA, "json_object": {"type": "object"}}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "json_object": ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        r'\{\s*"a"\s*:\s*-?\d+\s*,\s*"b"\s*:\s*"[xy]"\s*\}',
    ),
    "strict": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
            }
        },
        r'\{\s*"a"\s*:\s*-?\d+\s*,\s*"b"\s*:\s*"[xy]"\s*\}',
    ),
    "regex": ({"structured_outputs": {"regex": "[ab]{3}c"}}, "[ab]{3}c"),
    "choice": ({"structured_outputs": {"choice": ["yes", "no 😀"]}}, "yes|no 😀"),
    "grammar": ({"structured_outputs": {"grammar": 'start: "q" /[0-9]/'}}, "q[0-9]"),
    "text": ({"response_format": {"type": "text"}}, ".*"),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_chat_has_the_form(llm: AsyncLLM, name: str, is_stream: bool) -> None:
    fields, pattern = FORMS[name]
    reply = Tiny(llm, "plain").chat(stream=is_stream, **fields)

    (choice,) = joined(reply) if is_stream else whole(reply)
    assert re.fullmatch(pattern, choice["content"], re.DOTALL)
    if "json" in name:
        json.loads(choice["content"])


def test_other_routes_have_the_form(llm: AsyncLLM) -> None:
    server = Tiny(llm, "plain")
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}

    complete = server.post(
        "/v1/completions", {"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}}
    )
    response = server.post(
        "/v1/responses", {"input": "a", "text": {"format": form}, "max_output_tokens": 80}
    )

    assert complete.json()["choices"][0]["text"] in ("yes", "no")
    (item,) = response.json()["output"]
    assert json.loads(item["content"][0]["text"]).keys() == {"a", "b"}
    assert response.json()["text"]["format"]["schema"] == SCHEMA


@pytest.mark.parametrize(("choice", "is_stream"), [("required", True), (NAMED, False)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_forced_call_comes(llm: AsyncLLM, dialect: str, choice: Any, is_stream: bool) -> None:
    reply = Tiny(llm, dialect).chat(
        tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, stream=is_stream
    )

    (answer,) = joined(reply) if is_stream else whole(reply)
    (call,) = answer["calls"]
    assert answer["content"] == ""
    assert answer["finish_reason"] == "tool_calls"
    arguments = json.loads(call["arguments"])
    assert call["name"] in (("f", "g") if choice == "required" else ("g",))
    if call["name"] == "g":
        assert isinstance(arguments["a"], int)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_arguments_of_a_forced_call_satisfy_their_schema(
    llm: AsyncLLM, dialect: str, seed: int
) -> None:
    tool = {"type": "function", "function": {"name": "r", "parameters": RICH, "strict": True}}

    reply = Tiny(llm, dialect).chat(
        tools=[tool], tool_choice="required", seed=seed, max_tokens=200, parallel_tool_calls=False
    )

    (answer,) = whole(reply)
    (call,) = answer["calls"]
    assert call["name"] == "r"
    jsonschema.validate(json.loads(call["arguments"]), RICH)


@pytest.mark.parametrize("choice", ["auto", "none", "required", NAMED])
@pytest.mark.parametrize("name", ["json_schema", "json_object", "text"])
@pytest.mark.parametrize("template", ["hermes", "thinking"])
def test_form_and_tools_together_are_calls_or_content(
    llm: AsyncLLM, template: str, name: str, choice: Any
) -> None:
    # Only calls need many tokens.
    room = {"max_tokens": 44} if choice == "none" else {}
    reply = Tiny(llm, template).chat(tools=TOOLS, tool_choice=choice, **FORMS[name][0], **room)

    assert reply.status == 200, reply.text
    (answer,) = whole(reply)
    if choice == "none":
        assert answer["calls"] == []
    elif choice != "auto":
        assert answer["calls"]
    for call in answer["calls"]:
        json.loads(call["arguments"])
    if name != "text" and not answer["calls"]:
        jsonschema.validate(json.loads(answer["content"]), FORM_SCHEMAS[name])


def test_choice_none_takes_the_text_of_a_call_for_content(llm: AsyncLLM) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    form = {"structured_outputs": {"choice": [text]}, "max_tokens": 80}

    reply = Tiny(llm, "hermes").chat(tools=TOOLS, tool_choice="none", **form)

    (answer,) = whole(reply)
    assert (answer["calls"], answer["content"]) == ([], text)


def test_form_begins_after_reasoning_that_the_prompt_opened(llm: AsyncLLM) -> None:
    reply = Tiny(llm, "thinking").chat(**FORMS["json_schema"][0])

    (answer,) = whole(reply)
    assert json.loads(answer["content"]).keys() == {"a", "b"}
    assert "</think>" not in answer["content"]


def test_streamed_tool_calls_are_several(llm: AsyncLLM) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "h", "parameters": schema}}
    call = "<tool_call>\n<function=h>\n</function>\n</tool_call>"
    bias = {str(byte): 20 for byte in b"\n"}

    reply = Tiny(llm, "qwen_xml").chat(
        tools=[tool], tool_choice="required", logit_bias=bias, max_tokens=100
    )

    (answer,) = whole(reply)
    assert [found["name"] for found in answer["calls"]][:1] == ["h"]
    assert reply.json()["usage"]["completion_tokens"] >= len(call)


def test_keywords_that_the_texts_of_a_call_give_up_are_told(llm: AsyncLLM) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "format": "date"}},
        "minProperties": 1,
    }
    tool = {"type": "function", "function": {"name": "r", "parameters": schema}}
    body = {"tools": [tool], "tool_choice": "required", "max_tokens": 120}
    expected = [
        "tool 'r': #/minProperties is not enforced",
        "tool 'r': #/properties/a/format is not enforced",
    ]
    server = Tiny(llm, "qwen_xml")

    streamed = [event.get("warnings") for event in server.chat(**body, stream=True).data()]
    assert server.chat(**body).json()["warnings"] == expected
    assert [told for told in streamed if told] == [expected]
    tool["function"]["strict"] = True  # type: ignore[index]
    for choice in ("required", "auto"):
        refused = server.chat(**{**body, "tool_choice": choice})
        assert refused.status == 400
        assert refused.json()["error"]["param"] == "tools[0].function.parameters"
        assert "#/minProperties of 'r'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("dialect", ["hermes", "qwen_xml"])
def test_keywords_that_a_call_does_not_honour_are_told(llm: AsyncLLM, dialect: str) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tool = {"type": "function", "function": {"name": "r", "parameters": schema}}

    told = Tiny(llm, dialect).chat(tools=[tool], tool_choice="required", max_tokens=120)
    tool["function"]["strict"] = True  # type: ignore[index]
    refused = Tiny(llm, dialect).chat(tools=[tool], tool_choice="required", max_tokens=120)

    assert told.status == 200, told.text
    assert any('"not"' in text for text in told.json()["warnings"])
    assert refused.status == 400
    assert refused.json()["error"]["param"] == "tools[0].function.parameters"


def test_schema_beside_tools_is_as_strict_as_without(llm: AsyncLLM) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    form = {"name": "s", "schema": schema, "strict": False}
    asked = {"response_format": {"type": "json_schema", "json_schema": form}, "tools": TOOLS}

    told = Tiny(llm, "hermes").chat(**asked)
    form["strict"] = True
    refused = Tiny(llm, "hermes").chat(**asked)

    assert told.status == 200, told.text
    assert any('"not"' in text for text in told.json()["warnings"])
    assert refused.status == 400


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "call_without_tools": ("hermes", {"tool_choice": "required"}, "tool_choice"),
    "named_call_without_tools": ("hermes", {"tool_choice": NAMED, "tools": []}, "tool_choice"),
    "unknown_type": ("plain", {"response_format": {"type": "xml"}}, "response_format"),
    "no_schema": ("plain", {"response_format": {"type": "json_schema"}}, "response_format"),
    "both": (
        "plain",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "response_format",
    ),
    "unknown_option": ("plain", {"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
    "bad_regex": ("plain", {"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs"),
    "two_kinds": (
        "plain",
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs",
    ),
    "not_honoured": (
        "plain",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "strict": True,
                    "schema": {"properties": {"x": {"not": {"type": "string"}}}},
                },
            }
        },
        "response_format.json_schema.schema",
    ),
    "other_tool": (
        "hermes",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "z"}}},
        "tool_choice",
    ),
    "regex_and_tools": (
        "hermes",
        {"tools": TOOLS, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
    ),
    "too_short": (
        "hermes",
        {"tools": TOOLS, "tool_choice": "required", "max_tokens": 5},
        "max_tokens",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_form_that_cannot_be_had_is_refused(llm: AsyncLLM, name: str) -> None:
    template, fields, param = REFUSED[name]

    reply = Tiny(llm, template).chat(**fields)

    assert reply.status == 400, reply.text
    assert reply.json()["error"]["param"] == param
    if name == "not_honoured":
        assert "#/properties/x/not" in reply.json()["error"]["message"]


def test_lax_schema_tells_what_it_gives_up(llm: AsyncLLM) -> None:
    schema = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}

    reply = Tiny(llm, "plain").chat(response_format=form)

    assert reply.status == 200
    warnings = reply.json()["warnings"]
    prompt = {"prompt": "Hi", "max_tokens": 60, "response_format": form, "stream": True}
    for streamed in (
        Tiny(llm, "plain").chat(response_format=form, stream=True),
        Tiny(llm, "plain").post("/v1/completions", prompt),
    ):
        told = [chunk["warnings"] for chunk in streamed.data() if "warnings" in chunk]
        assert told == [warnings]


BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD_SCHEMA}}


@pytest.mark.parametrize(
    ("path", "fields", "param", "place"),
    [
        (
            *("chat/completions", {"response_format": JSON_SCHEMA}),
            *("response_format.json_schema.schema", "response_format.json_schema.schema"),
        ),
        (
            *(
                "chat/completions",
                {"response_format": {"type": "json_object", "schema": BAD_SCHEMA}},
            ),
            *("response_format.schema", "response_format.schema"),
        ),
        (
            *("chat/completions", {"structured_outputs": {"json": BAD_SCHEMA}}),
            *("structured_outputs", "structured_outputs.json"),
        ),
        (
            *("completions", {"response_format": JSON_SCHEMA}),
            *("response_format.json_schema.schema", "response_format.json_schema.schema"),
        ),
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": BAD_SCHEMA}}},
            *("text.format.schema", "text.format.schema"),
        ),
    ],
)
def test_schema_that_is_refused_is_named_as_the_client_has_it(
    serve: Serve, path: str, fields: dict[str, Any], param: str, place: str
) -> None:
    prompt = {"prompt": "Hi", "input": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    name = {"completions": "prompt", "responses": "input"}.get(path, "messages")

    error = serve().post(f"/v1/{path}", {name: prompt[name], **fields}).json()["error"]

    assert error["param"] == param
    assert f"] {place}: expected" in error["message"]
    assert "/properties/a" in error["message"]
