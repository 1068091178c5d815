"""Schemas that cannot be honoured: a 400 that names whose schema it is, the keyword, the remedy."""

from typing import Any

import pytest

from pyvt.server.errors import WireError, WireException, renamed
from pyvt.server.schema_rules import parameters_of
from tests.server.conftest import Serve
from tests.server.harness import Reply
from tests.server.test_structure import DIALECTS, TEMPLATES

CHAT = "/v1/chat/completions"
FINE: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}
HI = [{"role": "user", "content": "Hi"}]
CORRECT, LAX = "leave it out, or correct it", "leave it out, or leave out strict"


def of(kind: Any, **more: Any) -> dict[str, Any]:
    """Return a schema of arguments with one property."""
    return {"type": "object", "properties": {"a/b": kind}, **more}


# Whether the tool is strict, its schema, the pointer, and what is told of it.
SCHEMAS: dict[str, tuple[bool, dict[str, Any], str, str]] = {
    "type": (False, of({"type": "nonsense"}), "#/properties/a~1b/type", "Invalid type: nonsense"),
    "deep": (
        *(False, of({"type": "array", "items": of({"enum": 5})})),
        *("#/properties/a~1b/items/properties/a~1b/enum", "enum must be an array"),
    ),
    "pattern": (
        *(False, of({"type": "array", "items": {"type": "string", "pattern": "("}})),
        *("#/properties/a~1b/items/pattern", "unclosed group"),
    ),
    "reference": (
        *(False, of({"$ref": "#/$defs/no"})),
        *("#/properties/a~1b/$ref", "Pointer '/$defs/no' does not exist"),
    ),
    "endless": (
        False,
        of(
            {"$ref": "#/$defs/n"},
            required=["a/b"],
            **{"$defs": {"n": of({"$ref": "#/$defs/n"}, required=["a/b"])}},
        ),
        *("#/$defs/n", "it requires itself or is false"),
    ),
    "impossible": (
        *(False, of({"type": "integer", "minimum": 5, "maximum": 1}, required=["a/b"])),
        *("#/properties/a~1b/minimum", "Unsatisfiable schema: required property 'a/b'"),
    ),
    "keyword": (
        *(True, of({"type": "array", "items": {"not": {"type": "string"}}})),
        *("#/properties/a~1b/items/not", 'Unimplemented keys: ["not"]'),
    ),
    # Without these checks some dialects failed with a 500, and others let the tool through.
    "no_object": (False, {"type": "string"}, "#/type", "expected 'object'"),
    "properties": (False, {"properties": [1]}, "#/properties", "expected an object"),
    "property": (False, of(5), "#/properties/a~1b", "expected an object or a boolean"),
    "required": (False, of({}, required=5), "#/required", "expected a list of texts"),
    "required_list": (False, of({}, required=[[1]]), "#/required", "expected a list of texts"),
    "type_number": (False, of({"type": 5}), "#/properties/a~1b/type", "type must be a string"),
}


def told(reply: Reply) -> tuple[str, str]:
    """Return the field that is to blame and the message."""
    assert reply.status == 400, reply.text
    error = reply.json()["error"]
    return error.get("param"), error["message"]


@pytest.mark.parametrize("template", DIALECTS)
def test_tool_whose_schema_is_refused_is_named_with_the_keyword(
    serve: Serve, template: str
) -> None:
    server = serve(template=TEMPLATES[template])
    place = "tools[1].function.parameters"
    for is_strict, schema, pointer, reason in SCHEMAS.values():
        bad = {"name": "bad", "parameters": schema, "strict": is_strict}
        tools = [
            {"type": "function", "function": function}
            for function in ({"name": "fine", "parameters": FINE}, bad)
        ]
        choices: list[Any] = ["required", {"type": "function", "function": {"name": "bad"}}]
        for choice in [*choices, "auto"] if is_strict else choices:
            param, message = told(server.chat(tools=tools, tool_choice=choice))

            assert param == place
            assert message.startswith(
                f"[request] {place}: expected a schema that can be honoured, got {pointer} of "
                f"'bad': {reason}"
            ), message
            assert message.endswith(LAX if is_strict else CORRECT), message
        asked = {"type": "function", "function": {"name": "fine"}}
        assert server.chat(tools=tools, tool_choice=asked).status == 200


BAD = SCHEMAS["type"][1]
# Route, its body, the field that is to blame, what the message begins with.
ROUTES: list[tuple[str, dict[str, Any], str]] = [
    (
        CHAT,
        {
            "messages": HI,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": BAD}}],
            "tool_choice": "required",
        },
        "tools[0].function.parameters",
    ),
    (
        "/v1/responses",
        {
            "input": "Hi",
            "tools": [
                {"type": "function", "name": "e", "parameters": FINE},
                {"type": "function", "name": "f", "parameters": BAD},
            ],
            "tool_choice": "required",
        },
        "tools[1].parameters",
    ),
    (
        "/v1/messages",
        {
            "messages": HI,
            "max_tokens": 200,
            "tools": [
                {"name": "e", "input_schema": FINE},
                {"name": "f", "input_schema": BAD},
            ],
            "tool_choice": {"type": "any"},
        },
        "tools[1].input_schema",
    ),
    (
        "/v1/messages/count_tokens",
        {
            "messages": HI,
            "tools": [{"name": "f", "input_schema": SCHEMAS["properties"][1]}],
            "tool_choice": {"type": "any"},
        },
        "tools[0].input_schema",
    ),
]


@pytest.mark.parametrize(("path", "body", "place"), ROUTES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_every_route_names_the_tool_by_its_own_field(
    serve: Serve, path: str, body: dict[str, Any], place: str, is_stream: bool
) -> None:
    server = serve(template=TEMPLATES["hermes"])

    param, message = told(server.post(path, {**body, "stream": is_stream}))

    assert param == (None if path.startswith("/v1/messages") else place)
    assert message.startswith(f"[request] {place}: expected a schema that can be honoured, got #/p")


def test_schema_of_the_content_beside_tools_is_named_as_the_client_has_it(serve: Serve) -> None:
    server = serve(template=TEMPLATES["hermes"])
    tools = [{"type": "function", "function": {"name": "f", "parameters": FINE}}]
    place = "response_format.json_schema.schema"
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD}}

    param, message = told(server.chat(tools=tools, response_format=form))

    assert param == place
    assert message.startswith(f"[structured] {place}: expected a schema that can be honoured, ")
    assert "#/properties/a~1b/type cannot, got Invalid type: nonsense" in message


def test_lax_schema_is_not_blamed_for_what_it_may_give_up(serve: Serve) -> None:
    properties = {"given_up": {"not": {"type": "string"}}, "bad": {"type": "nonsense"}}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"properties": properties}},
    }

    param, message = told(serve().chat(response_format=form))

    assert param == "response_format.json_schema.schema"
    assert "#/properties/bad/type cannot" in message


@pytest.mark.parametrize("num_tools", [1, 600])
def test_tools_that_are_too_much_only_together_get_their_own_remedy(
    serve: Serve, num_tools: int
) -> None:
    enum = [f"word {i}" for i in range(9000 // num_tools)]
    schema = {"type": "object", "properties": {"a": {"enum": enum}}}
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": schema}}
        for i in range(num_tools)
    ]

    server = serve(template=TEMPLATES["hermes"], max_model_len=9000, num_blocks=9000)
    param, message = told(server.chat(tools=tools, tool_choice="required"))

    if num_tools == 1:
        assert param == "tools[0].function.parameters"
        assert message.startswith(f"[request] {param}: expected at most 65536 bytes, got ")
        assert message.endswith("; send 'f0' a simpler schema")
    else:
        assert param == "tools"
        assert message.startswith("[request] tools: expected at most 65536 bytes, got ")
        assert message.endswith("; send fewer tools, or simpler schemas")


def test_nulls_in_a_schema_of_arguments_are_absence() -> None:
    given = {"type": None, "properties": None, "required": None, "title": None}

    assert parameters_of({"name": "f", "parameters": given}) == {"type": "object", "title": None}


# The field there, names, and the field as the client has it.
NAMES: list[tuple[str, dict[str, str], str]] = [
    ("max_tokens", {"max_tokens": "max_output_tokens"}, "max_output_tokens"),
    ("max_tokens_of", {"max_tokens": "max_output_tokens"}, "max_tokens_of"),
    ("messages[2].role", {"messages": "input"}, "input[2].role"),
    ("tools[3].function.name", {"tools.function": "tools"}, "tools[3].name"),
    (
        "tools[3].function.parameters",
        {"tools.function": "tools", "tools.function.parameters": "tools.input_schema"},
        "tools[3].input_schema",
    ),
    ("tools[3].type", {"tools.function": "tools"}, "tools[3].type"),
]


@pytest.mark.parametrize(("param", "names", "expected"), NAMES)
def test_field_is_renamed_with_its_places(param: str, names: dict[str, str], expected: str) -> None:
    message = f"[request] {param}: expected tools.function"
    error = renamed(WireException(WireError(status=400, message=message, param=param)), names)

    assert isinstance(error, WireException)
    assert error.error.param == expected
    assert error.error.message == f"[request] {expected}: expected tools.function"


@pytest.mark.parametrize("levels", [125, 200, 300, 900])
@pytest.mark.parametrize("part", ["items", "anyOf"])
def test_schema_of_too_many_levels_is_refused_by_the_name_of_its_field(
    serve: Serve, part: str, levels: int
) -> None:
    server = serve(template=TEMPLATES["hermes"], config={"max_json_depth": 5000})
    nested: Any = {}
    for _ in range(levels // 2 if part == "anyOf" else levels):
        nested = {part: [nested] if part == "anyOf" else nested}
    tools = [{"type": "function", "function": {"name": "f", "parameters": FINE}}]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": nested}}
    text_form = {"format": {"type": "json_schema", "name": "x", "schema": nested}}
    asked: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {"messages": HI, "response_format": form}, "response_format.json_schema.schema"),
        (
            *(CHAT, {"messages": HI, "tools": tools, "response_format": form}),
            "response_format.json_schema.schema",
        ),
        ("/v1/responses", {"input": "Hi", "text": text_form}, "text.format.schema"),
        (
            "/v1/completions",
            {"prompt": "Hi", "structured_outputs": {"json": nested}},
            "structured_outputs",
        ),
    ]
    for path, body, param in asked:
        reply = server.post(path, body)

        assert reply.status == 400, reply.text
        assert "expected at most 120 levels" in reply.json()["error"]["message"]
        assert reply.json()["error"]["param"] == param
