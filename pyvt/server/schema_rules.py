"""Schemas of tools as rules of a grammar, and what of them a dialect cannot write."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyvt.server.errors import request_error
from pyvt.structured.grammar import WHITESPACE

Schema = Mapping[str, Any]
# A function with its name, its parameters and whether they are strict.
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
    options = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True, "lenient": not is_strict}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def parameters_of(tool: Tool) -> Schema:
    """Return the schema of a tool's arguments."""
    return {"type": "object", **(tool.get("parameters") or {})}


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
            place = f"#/properties/{where}/{keyword}" if where else f"#/{keyword}"
            if tool.get("strict"):
                raise request_error(
                    f"[request] tools: expected a schema that can be honoured in this model's "
                    f"form of calls, got {place} of {tool['name']!r}; leave it out, or leave out "
                    "strict",
                    param="tools",
                    code="invalid_value",
                )
            self.warnings.append(f"tool {tool['name']!r}: {place} is not enforced")

    def add_object(self, tool: Tool) -> None:
        """Note what says more of the arguments than the properties do, which stand one by one."""
        schema = parameters_of(tool)
        lost = [name for name in _TOO_MUCH if name in schema]
        if not set(schema.get("required") or ()) <= properties_of(schema).keys():
            lost.append("required")
        self.add(tool, lost)
