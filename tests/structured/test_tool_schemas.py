"""Tools that people have described: arguments that are wrong are never let through.

What is right is said by the ``jsonschema`` package, not by the tools' own examples: a document is
the arguments of a right call, or those with one thing broken.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyvt.testing.schema_suite import run_suite

pytestmark = pytest.mark.slow

# Words of other languages for the types of JSON; "any" is no restriction.
TYPES = {
    **{"dict": "object", "hashmap": "object", "float": "number", "double": "number"},
    **{"long": "integer", "tuple": "array", "arraylist": "array", "char": "string"},
}
JSON_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# A value that is of no such type.
WRONG = {"string": 7, "integer": "7", "number": "7", "boolean": 1, "array": "a", "object": []}


def as_schema(described: Any) -> Any:
    """Return a description of arguments as JSON Schema."""
    if isinstance(described, list):
        return [as_schema(item) for item in described]
    if not isinstance(described, dict):
        return described
    schema = {}
    for key, value in described.items():
        if key == "properties":
            schema[key] = {name: as_schema(inner) for name, inner in value.items()}
        elif key == "type" and isinstance(value, str):
            name = TYPES.get(value.lower(), value.lower())
            if name in JSON_TYPES:
                schema[key] = name
        elif key in ("enum", "default", "required", "description"):
            schema[key] = value
        else:
            schema[key] = as_schema(value)
    return schema


def in_order(schema: Any, value: Any) -> Any:
    """Return a document with its properties in the order of the schema, as grammars have them."""
    if isinstance(value, dict):
        inner = schema.get("properties", {}) if isinstance(schema, dict) else {}
        names = [*(name for name in inner if name in value), *(n for n in value if n not in inner)]
        return {name: in_order(inner.get(name, {}), value[name]) for name in names}
    if isinstance(value, list):
        items = schema.get("items", {}) if isinstance(schema, dict) else {}
        return [in_order(items, item) for item in value]
    return value


def documents(schema: dict[str, Any], calls: list[dict[str, Any]]) -> Iterator[Any]:
    """Yield the arguments of right calls, and each of them with one thing broken."""
    for call in calls:
        ((_, answers),) = call.items()
        # An empty text among the answers says that the argument may be left out.
        right = {name: _first(values) for name, values in answers.items()}
        right = {name: value for name, value in right.items() if value != ""}
        yield right
        for name, inner in schema.get("properties", {}).items():
            if name not in right:
                continue
            yield {key: value for key, value in right.items() if key != name}
            yield {**right, name: WRONG.get(inner.get("type"))}
            if "enum" in inner:
                yield {**right, name: "none of them"}
            if inner.get("type") == "array":
                yield {**right, name: [{"a": 1}]}
    yield []


def _first(values: Any) -> Any:
    """Return the first of the answers that are right, of what is nested in it too."""
    value = values[0] if isinstance(values, list) and values else values
    if isinstance(value, dict):
        return {name: _first(inner) for name, inner in value.items()}
    return value


def group_of(row: dict[str, Any]) -> dict[str, Any]:
    schema = as_schema(copy.deepcopy(row["function"]["parameters"]))
    validator = jsonschema.Draft202012Validator(schema)
    tests = [
        {"description": json.dumps(data), "data": data, "valid": validator.is_valid(data)}
        for data in (in_order(schema, data) for data in documents(schema, row["calls"]))
    ]
    return {"description": row["function"]["name"], "schema": schema, "tests": tests}


def test_arguments_of_tools_are_let_through_just_where_they_are_valid(
    tool_schemas_path: Path,
) -> None:
    groups = [group_of(row) for row in json.loads(tool_schemas_path.read_text())]

    result = run_suite(groups)

    assert result.num_schemas > 600
    assert (result.num_accepted > 900, result.num_rejected > 3000) == (True, True)
    assert result.unsound == []
    assert result.num_lost == 0
    assert all("#" in text for text in result.refusals.values()), "a refusal without a reason"
    assert len(result.refusals) < 20
