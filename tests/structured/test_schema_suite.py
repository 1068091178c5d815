"""Schemas and documents, valid and not: nothing invalid is ever let through unsaid."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.testing.schema_suite import run_suite

OK, BAD = True, False


def _group(schema: Any, *documents: tuple[Any, bool]) -> dict[str, Any]:
    tests = [
        {"description": json.dumps(data), "data": data, "valid": valid} for data, valid in documents
    ]
    return {"description": json.dumps(schema), "schema": schema, "tests": tests}


_PAIR = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}
# One group a keyword, of what the specification says about it.
HONOURED = [
    _group({"type": "integer"}, (1, OK), (-7, OK), (1.5, BAD), ("1", BAD), (None, BAD)),
    _group({"type": ["null", "boolean"]}, (None, OK), (False, OK), (0, BAD), ("", BAD)),
    _group({"enum": [1, "a", None, [2]]}, ("a", OK), ([2], OK), (2, BAD), ("b", BAD)),
    _group({"const": {"a": 1}}, ({"a": 1}, OK), ({"a": 2}, BAD), ({}, BAD)),
    _group({"type": "integer", "minimum": 3, "exclusiveMaximum": 12}, (3, OK), (11, OK), (2, BAD)),
    _group({"type": "integer", "exclusiveMaximum": 12}, (12, BAD), (-5, OK)),
    _group(
        {"type": "string", "minLength": 2, "maxLength": 3}, ("é€", OK), ("a", BAD), ("abcd", BAD)
    ),
    _group({"type": "string", "pattern": "^a+$"}, ("aa", OK), ("ab", BAD), ("", BAD)),
    _group({"type": "string", "format": "date"}, ("2024-02-09", OK), ("2024-2-9", BAD)),
    _group({"type": "array", "minItems": 1, "maxItems": 2}, ([1], OK), ([], BAD), ([1, 2, 3], BAD)),
    _group({"type": "array", "items": {"type": "null"}}, ([None], OK), ([1], BAD)),
    _group({**_PAIR, "items": False}, ([1, "a"], OK), (["a", 1], BAD), ([1, "a", 2], BAD)),
    _group(
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
        ({"a": None}, OK),
        ({"a": None, "b": 1}, OK),
        ({"a": 1}, BAD),
        ({}, BAD),
    ),
    _group(
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        ({}, OK),
        ({"a": 1}, OK),
        ({"b": 1}, BAD),
    ),
    _group({"anyOf": [{"type": "null"}, {"const": 2}]}, (None, OK), (2, OK), (3, BAD)),
    _group({"allOf": [{"type": "integer"}, {"minimum": 5}]}, (6, OK), (4, BAD), ("a", BAD)),
    _group(
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
        ([[], [[]]], OK),
        ([1], BAD),
    ),
]
# What a grammar cannot follow, with the place that the refusal must name.
REFUSED = [
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "#/contains"),
    ({"not": {"type": "string"}}, "#/not"),
    ({"properties": {"a": {"if": {"const": 1}, "then": False}}}, "#/properties/a"),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, "#/propertyNames"),
    (
        {"properties": {"a": {"dependentRequired": {"b": ["c"]}}}},
        "#/properties/a/dependentRequired",
    ),
    (
        {"properties": {"a": {"unevaluatedProperties": False}}},
        "#/properties/a/unevaluatedProperties",
    ),
]


@pytest.mark.parametrize("group", HONOURED, ids=[g["description"][:60] for g in HONOURED])
def test_documents_are_let_through_just_where_they_are_valid(group: dict[str, Any]) -> None:
    result = run_suite([group])

    assert result.refusals == {}
    assert (result.unsound, result.num_lost, result.num_warned) == ([], 0, 0)
    assert result.num_accepted + result.num_rejected == len(group["tests"])


@pytest.mark.parametrize(("schema", "pointer"), REFUSED, ids=[pointer for _, pointer in REFUSED])
def test_keyword_that_cannot_be_followed_is_refused_or_told(schema: Any, pointer: str) -> None:
    group = _group(schema, (None, BAD))

    (refusal,) = run_suite([group]).refusals.values()
    lax = run_suite([group], is_strict=False)

    assert f"{pointer} cannot" in refusal
    assert (lax.refusals, lax.unsound) == ({}, [])


@pytest.mark.slow
@pytest.mark.parametrize("is_strict", [True, False])
def test_whole_suite_has_no_invalid_document_that_is_let_through(
    is_strict: bool, schema_suite_path: Path
) -> None:
    groups = json.loads(schema_suite_path.read_text())

    result = run_suite(groups, is_strict=is_strict)

    assert result.num_schemas > 300
    assert result.num_accepted > 300
    assert result.unsound == []
    assert result.num_warned == 0 or not is_strict
    unnamed = [text for text in result.refusals.values() if "#" not in text]
    assert all("one without any" in text for text in unnamed), "a refusal without a reason"
