"""JSON schemas: how they are compiled, and which keyword is to blame where one is refused."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Node = Any

_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLES = (
    *("items", "additionalProperties", "additionalItems", "unevaluatedProperties"),
    *("unevaluatedItems", "propertyNames", "contains", "not", "if", "then", "else"),
)
# Schemas compiled to find the keyword to blame, and seconds for all; one takes about a millisecond.
_MAX_TRIALS = 300
_MAX_TRIALS_S = 1.0


def without_additional(node: Node) -> Node:
    """Return a schema in which objects that name properties take no others, unless they say so."""
    if isinstance(node, list):
        return [without_additional(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    changed = {key: without_additional(value) for key, value in node.items()}
    if isinstance(node.get("properties"), Mapping) or node.get("type") == "object":
        changed.setdefault("additionalProperties", False)
    return changed


def keyword_to_blame(schema: Node, is_refused: Callable[[Node], bool]) -> str:
    """Return a JSON pointer to the keyword without which the innermost refused part is accepted.

    Args:
        schema: a schema that is refused.
        is_refused: compiles a part, which has the definitions of the whole.

    Returns:
        A pointer such as ``#/properties/x/not``; to the part where no single keyword is to blame.
    """
    trials = iter(range(_MAX_TRIALS))
    end_s = time.thread_time() + _MAX_TRIALS_S

    def refused(node: Node) -> bool:
        if next(trials, None) is None or time.thread_time() > end_s:
            return False
        return is_refused(_with_definitions(node, schema))

    pointer, node = "#", schema
    while True:
        inner = next(((p, n) for p, n in _parts(pointer, node) if refused(n)), None)
        if inner is None:
            break
        pointer, node = inner
    if isinstance(node, Mapping):
        # Without its type almost any part is accepted.
        for key in sorted(node, key=lambda name: name == "type"):
            rest = {other: value for other, value in node.items() if other != key}
            if key not in _MAPS[:2] and not refused(rest) and next(trials, None) is not None:
                return f"{pointer}/{escaped(key)}"
    return pointer


def _parts(pointer: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Return the schemas directly inside a schema, definitions first."""
    if not isinstance(node, Mapping):
        return
    for key in _MAPS:
        if isinstance(node.get(key), Mapping):
            for name, part in node[key].items():
                yield f"{pointer}/{key}/{escaped(name)}", part
    for key in _LISTS:
        if isinstance(node.get(key), list):
            for i, part in enumerate(node[key]):
                yield f"{pointer}/{key}/{i}", part
    for key in _SINGLES:
        if isinstance(node.get(key), Mapping):
            yield f"{pointer}/{key}", node[key]


def _with_definitions(node: Node, schema: Node) -> Node:
    if not isinstance(node, Mapping) or not isinstance(schema, Mapping):
        return node
    return {key: schema[key] for key in _MAPS[:2] if key in schema} | dict(node)


def escaped(name: str) -> str:
    """Return a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


@dataclass(slots=True)
class SchemaSize:
    """What of a schema is bounded, summed over several.

    Attributes:
        num_references: how often ``$ref`` occurs.
        longest_pattern: characters of the longest regular expression.
        num_levels: objects and lists inside each other, of the deepest.
    """

    num_references: int = 0
    longest_pattern: int = 0
    num_levels: int = 0

    def add(self, node: Node, level: int = 1) -> None:
        """Add a schema; raises RecursionError for one that is nested too deeply."""
        if isinstance(node, (list, Mapping)):
            self.num_levels = max(self.num_levels, level)
        if isinstance(node, list):
            for item in node:
                self.add(item, level + 1)
        if not isinstance(node, Mapping):
            return
        self.num_references += "$ref" in node
        patterns = [node.get("pattern")]
        if isinstance(node.get("patternProperties"), Mapping):
            patterns += node["patternProperties"]
        lengths = (len(pattern) for pattern in patterns if isinstance(pattern, str))
        self.longest_pattern = max(self.longest_pattern, *lengths, 0)
        for value in node.values():
            self.add(value, level + 1)


def dump(schema: Node) -> str:
    """Return the schema as text; the order of properties is the order of the answer's."""
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)
