"""What a request's settings let through, kind by kind, and what is refused with which words."""

from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from tests.structured.texts import accepts, compiled

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
TAGS = {
    "structures": [{"begin": "<tool>", "schema": PERSON, "end": "</tool>"}],
    "triggers": ["<tool"],
}
GBNF = 'root ::= "a" item+\nitem ::= "b" | "c" [0-9]'
LARK = 'start: "a" item+\nitem: "b" | "c" /[0-9]/'


@pytest.mark.parametrize(
    ("settings", "good", "bad"),
    [
        pytest.param(
            {"json": PERSON},
            ['{"name":"x"}', '{"name": "x", "age": -3}', '{\n  "name": "é"\n}'],
            ['{"age":1}', '{"name":1}', '{"name":"x","b":1}', '{"age":1,"name":"x"}', "[]", ""],
            id="json",
        ),
        pytest.param({"json": '{"type": "integer"}'}, ["0", "-12"], ["1.5", "x"], id="json-text"),
        pytest.param({"json": True}, ["1", "[]", '{"a":{}}'], ["x", "[1,]"], id="json-true"),
        pytest.param(
            {"json": PERSON, "disable_any_whitespace": True},
            ['{"name":"x","age":1}'],
            ['{"name": "x"}', '{ "name":"x"}'],
            id="json-compact",
        ),
        pytest.param(
            {"json": PERSON},
            ["{" + " " * 8 + '"name":"x"}'],
            ["{" + " " * 9 + '"name":"x"}', '{"name":"x"}' + "\n"],
            id="json-spaces-are-bounded",
        ),
        pytest.param(
            {
                "json": {"type": "object", "properties": {"a": True}},
                "disable_additional_properties": True,
            },
            ["{}", '{"a":1}'],
            ['{"b":1}'],
            id="json-no-additional",
        ),
        pytest.param({"json_object": True}, ["{}", '{"a":[1]}'], ["[]", "1"], id="json-object"),
        pytest.param({"regex": "[ab]+/c?"}, ["a/", "ba/c"], ["/", "a", "a/d"], id="regex"),
        pytest.param({"regex": "(?i)yes"}, ["yes", "YeS"], ["no"], id="regex-flag"),
        pytest.param({"regex": r"\p{L}\d"}, ["é1", "x9"], ["11"], id="regex-class"),
        pytest.param({"regex": "^a+$"}, ["a", "aa"], ["", "b"], id="regex-anchors"),
        pytest.param(
            {"choice": ["yes", "no way", 'é"\n']},
            ["yes", "no way", 'é"\n'],
            ["no", ""],
            id="choice",
        ),
        pytest.param({"grammar": GBNF}, ["ab", "abc0b"], ["a", "abcx"], id="gbnf"),
        pytest.param({"grammar": LARK}, ["ab", "abc0b"], ["a", "abcx"], id="lark"),
        pytest.param(
            {"structural_tag": TAGS},
            ["", "any text", '<tool>{"name":"x"}</tool>', 'a <tool>{"name":"x"}</tool> b'],
            ["<tool>", '<tool>{"age":1}</tool>', '<tool>{"name":"x"}', "<tool-box>"],
            id="tags",
        ),
        pytest.param(
            {"json": PERSON, "begin_after": "</think>"},
            ['so</think>{"name":"x"}', '</think>\n\n{"name":"x"}', 'a < b</think>{"name":"x"}'],
            ['{"name":"x"}', "so</think>", "so</think>text"],
            id="after-reasoning",
        ),
    ],
)
def test_grammar_lets_through_what_it_says(
    settings: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    grammar = compiled(**settings)

    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_special_token_is_let_through_where_a_mark_names_it() -> None:
    grammar = compiled(json={"const": 1}, begin_after="<msg>")
    matcher = grammar.start((), max_tokens=None)

    before = matcher.masks((), 99)[0]
    matcher.advance([*b"so", 258])
    after = matcher.masks((), 99)[0]

    assert [i for i in range(256, 264) if before[i]] == [258]
    assert [i for i in range(264) if after[i]] == [9, 10, 13, 32, ord("1")]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"not": {"type": "string"}}, "#/not"),
        (
            {"properties": {"x": {"allOf": [{"type": "string"}, {"not": {}}]}}},
            "#/properties/x/allOf/1/not",
        ),
        (
            {"properties": {"a/b": {"type": "array", "uniqueItems": True}}},
            "#/properties/a~1b/uniqueItems",
        ),
        ({"$defs": {"q": {"contains": {}}}, "items": {"$ref": "#/$defs/q"}}, "#/$defs/q/contains"),
        ({"items": {"$ref": "#/$defs/q"}}, "#/items/$ref"),
        ({"prefixItems": [{}, {"pattern": "(?=b)"}]}, "#/prefixItems/1/pattern"),
        ({"anyOf": [{"type": "strin"}]}, "#/anyOf/0/type"),
        ({"type": "string", "format": "weird"}, "#/format"),
        ({"dependentSchemas": {"a": {}}}, "#/dependentSchemas"),
    ],
)
def test_schema_that_cannot_be_honoured_is_refused_with_a_pointer(
    schema: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(json=schema)

    assert f" {pointer} cannot, got " in str(refused.value)
    assert refused.value.param == "structured_outputs"


def test_schema_that_is_not_strict_loses_keywords_and_says_so() -> None:
    grammar = compiled(json={"type": "array", "uniqueItems": True}, strict=False)

    assert accepts(grammar, "[1,1]")
    assert [w for w in grammar.warnings if "uniqueItems" in w] == list(grammar.warnings)
    assert grammar.warnings


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"json": False}, id="json-false"),
        pytest.param({"json": {"$ref": "#"}}, id="json-of-itself"),
        pytest.param({"json": [1]}, id="json-list"),
        pytest.param({"regex": r"\b"}, id="word-border"),
        pytest.param({"regex": "(?=b)"}, id="look-ahead"),
        pytest.param({"regex": "(?<=x)*"}, id="look-behind"),
        pytest.param({"regex": r"(a)\1"}, id="backreference"),
        pytest.param({"regex": "[^]"}, id="open-class"),
        pytest.param({"grammar": "root ::= x"}, id="rule-unknown"),
        pytest.param({"grammar": 'x ::= "a"'}, id="no-root"),
        pytest.param({"grammar": "start: x"}, id="lark-rule-unknown"),
        pytest.param({"grammar": "what is this"}, id="no-grammar"),
        pytest.param({"json": {"a": "b"}, "begin_after": "</x>", "regex": "x"}, id="two-kinds"),
        pytest.param({}, id="no-kind"),
        pytest.param({"choice": []}, id="no-choice"),
        pytest.param({"choice": ["a", 1]}, id="choice-of-a-number"),
        pytest.param({"json": "{"}, id="json-broken"),
        pytest.param({"json": {"a": float("nan")}}, id="json-nan"),
        pytest.param({"structural_tag": {"structures": []}}, id="no-tags"),
        pytest.param(
            {"structural_tag": TAGS | {"triggers": ["<call"]}}, id="begin-without-a-trigger"
        ),
        pytest.param({"regex": "a", "strict": 1}, id="flag-of-a-number"),
        pytest.param({"regex": ""}, id="regex-empty"),
    ],
)
def test_grammar_without_a_meaning_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(**settings)

    assert refused.value.param == "structured_outputs"
    assert len(str(refused.value)) < 600


def test_settings_that_differ_in_what_a_request_does_share_a_grammar() -> None:
    first = compiled(regex="shared")

    assert compiled(regex="shared", close_within_budget=False) is first


def test_settings_are_kept_as_text_in_the_order_given() -> None:
    schema = {"properties": {"b": {}, "a": {}}}

    params = StructuredOutputsParams(json=schema)
    schema["properties"] = {}

    assert params.json == '{"properties": {"b": {}, "a": {}}}'
