"""Schemas of tools as rules of a grammar, and what of them a dialect cannot write."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyvt.server.errors import WireException, request_error
from pyvt.structured.grammar import WHITESPACE
from pyvt.structured.schema import escaped

Schema = Mapping[str, Any]
# A function with its name, its parameters, whether they are strict, and their place in the request.
Tool = Mapping[str, Any]

# Keywords that say more of an object than which properties it has and needs.
_TOO_MUCH = (
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
    *("dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
    *("$ref", "$dynamicRef"),
)


def json_rule(schema: Any, *, is_strict: bool) -> str:
    """Return the rule of JSON; a schema that is not strict gives up what it cannot honour."""
    if not isinstance(schema, Mapping):
        schema = {} if schema is not False else {"enum": []}
    options = json_options(is_strict=is_strict)
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def json_options(*, is_strict: bool) -> dict[str, Any]:
    """Return the options of llguidance's compiler for a schema of a tool."""
    return {"whitespace_pattern": WHITESPACE, "coerce_one_of": True, "lenient": not is_strict}


def parameters_of(tool: Tool) -> Schema:
    """Return the schema of a tool's arguments.

    Raises:
        WireException: it is not about objects, or tells their properties in a way of its own.
    """
    given = tool.get("parameters") or {}
    absent = {name for name in ("type", "properties", "required") if given.get(name) is None}
    schema = {"type": "object", **{k: v for k, v in given.items() if k not in absent}}
    kinds, properties = schema["type"], schema.get("properties", {})
    required = schema.get("required", [])
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise schema_error(tool, "#/type", "expected 'object'")
    if not isinstance(properties, Mapping):
        raise schema_error(tool, "#/properties", "expected an object")
    for name, kind in properties.items():
        if not isinstance(kind, Mapping | bool):
            raise schema_error(
                tool, f"#/properties/{escaped(name)}", "expected an object or a boolean"
            )
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise schema_error(tool, "#/required", "expected a list of texts")
    return schema


def schema_error(
    tool: Tool, pointer: str, reason: str, *, remedy: str = "leave it out, or correct it"
) -> WireException:
    """Return the error of a tool's schema, which tells where in it something is wrong."""
    place = tool.get("place", "tools")
    return request_error(
        f"[request] {place}: expected a schema that can be honoured, got {pointer} of "
        f"{tool['name']!r}: {reason}; {remedy}",
        param=place,
        code="invalid_value",
    )


def with_definitions(kind: Any, schema: Schema) -> Schema:
    """Return a property's schema with the definitions that it may refer to."""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**(kind if isinstance(kind, Mapping) else {}), **shared}


def properties_of(schema: Schema) -> dict[str, Any]:
    """Return the properties that a schema's objects may have."""
    found = schema.get("properties") or {}
    return {name: kind for name, kind in found.items() if kind is not False}


class Losses:
    """Keywords that a dialect cannot write: a strict tool is refused, another tells them.

    Attributes:
        warnings: a text for each.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def add(self, tool: Tool, keywords: Iterable[str], where: str = "") -> None:
        """Note keywords of a tool's schema, or of its property ``where``.

        Raises:
            WireException: the tool is strict, and there is one.
        """
        for keyword in keywords:
            place = f"#/properties/{escaped(where)}/{keyword}" if where else f"#/{keyword}"
            if tool.get("strict"):
                reason = "this model's form of calls cannot write it"
                raise schema_error(tool, place, reason, remedy="leave it out, or leave out strict")
            self.warnings.append(f"tool {tool['name']!r}: {place} is not enforced")

    def add_object(self, tool: Tool) -> None:
        """Note what says more of the arguments than the properties do, which stand one by one."""
        schema = parameters_of(tool)
        lost = [name for name in _TOO_MUCH if name in schema]
        if not set(schema.get("required") or ()) <= properties_of(schema).keys():
            lost.append("required")
        self.add(tool, lost)
