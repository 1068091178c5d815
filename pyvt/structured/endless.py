"""Proof that a grammar or a schema has a text with an end: the least set of parts that have one.

A part has an end when one of its alternatives is made of parts that have one. What comes back to
itself on every way has none, and no model could ever complete it. What is not understood here
counts as having an end, so nothing is refused without a proof.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Node = Any
# An alternative of sequences of names and of groups, which are such alternatives themselves.
Body = list[list[Any]]

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\f]+|//[^\n]*|\#[^\n]*|->[ \t]*\w+)
    |(?P<line>\n)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\n\\]|\\.)+/[a-z]*|<[^<>\s]*>|@[\w\-]+)
    |(?P<count>\{[ \t]*\d*[ \t]*(?:,[ \t]*\d*[ \t]*)?\}|~[ \t]*\d+(?:[ \t]*\.\.[ \t]*\d+)?)
    |(?P<name>!?[?_]?[a-z][\w\-]*|_*[A-Za-z][\w\-]*)
    |(?P<word>%\w+)
    |(?P<sign>::|.)""",
    re.VERBOSE,
)
_WITH_JSON = ("%json", "%regex", "%llguidance")
_OF_LINES = ("%ignore", "%import", "%declare")
_MAX_DIGITS = 6
# Parts of a schema that a value may do without, and what is no schema.
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf")
_SINGLES = ("items", "additionalProperties")
_VALUES = ("enum", "const", "default", "examples", "required")


def endless_rule(lark: str) -> str | None:
    """Return a rule in use that comes back to itself on every way, None where all have an end.

    Rules that ``start`` does not lead to are not looked at. Raises RecursionError for a grammar
    that is nested too deeply.
    """
    tokens = _tokens(lark)
    rules = None if tokens is None else _Rules(tokens).read()
    if not rules or "start" not in rules:
        return None
    ended: set[str] = set()
    pending = list(rules)
    while pending:
        left = [name for name in pending if not _body_ends(rules[name], ended, rules)]
        if len(left) == len(pending):
            break
        ended.update(set(pending) - set(left))
        pending = left[::-1]
    used, ahead = {"start"}, ["start"]
    while ahead:
        found = set(_names(rules[ahead.pop()])) & rules.keys() - used
        used |= found
        ahead += found
    rule = next((name for name in rules if name in used and name not in ended), None)
    passed: set[str] = set()
    while rule is not None and rule not in passed:
        passed.add(rule)
        rule = next(name for name in _names(rules[rule]) if name in rules and name not in ended)
    return rule


def finite_schema(schema: Node) -> tuple[Node, str | None]:
    """Return a schema whose optional parts that no finite value satisfies are ``false``.

    Beside it a reference that leads the schema back to itself where nothing is left, else None.
    """
    found = _Schema(schema)
    reference = found.endless_reference()
    return (found.pruned(schema) if found.has_endless else schema), reference


def _tokens(text: str) -> list[tuple[str, str]] | None:
    """Return kinds and texts of a Lark grammar's tokens, None for one that is not understood."""
    tokens: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        assert found is not None, "any character is a sign"
        kind, word = str(found.lastgroup), found[0]
        place = found.end()
        if kind == "word" and word in _WITH_JSON:
            while place < len(text) and text[place].isspace():
                place += 1
            try:
                _, place = json.JSONDecoder().raw_decode(text, place)
            except ValueError:
                return None
            tokens.append(("text", word))
        elif word == "::" or (kind == "word" and word not in _OF_LINES) or word == "~":
            return None  # rules with parameters, grammars inside of grammars, complements
        elif kind != "blank":
            tokens.append((kind, word))
    return tokens


class _Rules:
    """Reads tokens as rules; what is no rule is passed over."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._place = 0

    def read(self) -> dict[str, Body]:
        rules: dict[str, Body] = {}
        while self._place < len(self._tokens):
            kind, word = self._tokens[self._place]
            self._place += 1
            if kind == "name" and self._pass_head():
                rules.setdefault(word.lstrip("!?"), []).extend(self._body(is_group=False))
            else:
                self._pass_line(kind)
        return rules

    def _peek(self) -> tuple[str, str]:
        in_range = self._place < len(self._tokens)
        return self._tokens[self._place] if in_range else ("line", "")

    def _pass_line(self, kind: str) -> None:
        while kind != "line" and self._place < len(self._tokens):
            kind = self._tokens[self._place][0]
            self._place += 1

    def _pass_head(self) -> bool:
        """Go behind the colon of a rule; return whether there was one."""
        while self._peek()[0] != "line":
            word = self._peek()[1]
            self._place += 1
            if word == ":":
                return True
        return False

    def _body(self, *, is_group: bool) -> Body:
        body: Body = [[]]
        while self._place < len(self._tokens):
            kind, word = self._tokens[self._place]
            if kind == "line" and not is_group and not self._goes_on():
                return body
            self._place += 1
            if word in ("(", "["):
                group = self._body(is_group=True)
                body[-1].append([*group, []] if word == "[" else group)
            elif is_group and word in (")", "]"):
                return body
            elif word == "|":
                body.append([])
            elif kind == "name":
                body[-1].append(word)
            elif body[-1] and (word in ("?", "*") or (kind == "count" and _least(word) == 0)):
                body[-1].pop()
            elif kind == "text":
                body[-1].append([[]])
        return body

    def _goes_on(self) -> bool:
        """Return whether the next line with a token begins with another alternative."""
        rest = range(self._place, len(self._tokens))
        place = next((i for i in rest if self._tokens[i][0] != "line"), None)
        if place is None or self._tokens[place][1] != "|":
            return False
        self._place = place - 1
        return True


def _least(count: str) -> int:
    digits = re.search(r"\d+", count)
    return 0 if digits is None else int(digits[0][:_MAX_DIGITS])


def _body_ends(body: Body, ended: set[str], rules: Mapping[str, Body]) -> bool:
    def has_end(item: Any) -> bool:
        if isinstance(item, str):
            return item in ended or item not in rules
        return _body_ends(item, ended, rules)

    return any(all(map(has_end, sequence)) for sequence in body)


def _names(body: Body) -> Iterator[str]:
    for sequence in body:
        for item in sequence:
            if isinstance(item, str):
                yield item
            else:
                yield from _names(item)


class _Schema:
    """Which references of one schema lead to a value with an end."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._ended: set[str] = set()
        self.has_endless = False

    def pruned(self, node: Node) -> Node:
        """Return a part with ``false`` for what may be left out and has no end."""
        if isinstance(node, list):
            return [self.pruned(item) for item in node]
        if not isinstance(node, Mapping):
            return node
        return {key: self._pruned_value(key, value) for key, value in node.items()}

    def _pruned_value(self, key: str, value: Node) -> Node:
        if key in _VALUES:
            return value
        if key in _MAPS and isinstance(value, Mapping):
            return {name: self._pruned_part(part) for name, part in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self._pruned_part(part) for part in value]
        return self._pruned_part(value) if key in _SINGLES else self.pruned(value)

    def _pruned_part(self, node: Node) -> Node:
        return self.pruned(node) if self._ends(node) else False

    def endless_reference(self) -> str | None:
        targets = {pointer: _target(self._schema, pointer) for pointer in _references(self._schema)}
        pending = list(targets)
        while pending:
            left = [pointer for pointer in pending if not self._ends(targets[pointer])]
            if len(left) == len(pending):
                break
            self._ended |= set(pending) - set(left)
            pending = left[::-1]
        self.has_endless = bool(pending)
        return None if self._ends(self._schema) else min(pending, default=None)

    def _ends(self, node: Node) -> bool:
        if not isinstance(node, Mapping):
            return node is not False
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in self._ended:
            return False
        if not all(map(self._ends, _list(node, "allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            options = _list(node, key)
            if options and not any(map(self._ends, options)):
                return False
        types = node.get("type")
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or not types or "enum" in node or "const" in node:
            return True
        ends = {"object": self._object_ends, "array": self._array_ends}
        return any(not isinstance(t, str) or t not in ends or ends[t](node) for t in types)

    def _object_ends(self, node: Mapping[str, Node]) -> bool:
        properties = node.get("properties")
        if not isinstance(properties, Mapping):
            return True
        required = (name for name in _list(node, "required") if isinstance(name, str))
        return all(self._ends(properties[name]) for name in required if name in properties)

    def _array_ends(self, node: Mapping[str, Node]) -> bool:
        least = node.get("minItems")
        if not isinstance(least, int) or least < 1:
            return True
        first = _list(node, "prefixItems")
        has_more = least > len(first) and isinstance(node.get("items"), (Mapping, bool))
        return all(map(self._ends, first[:least])) and (not has_more or self._ends(node["items"]))


def _list(node: Mapping[str, Node], key: str) -> list[Node]:
    value = node.get(key)
    return value if isinstance(value, list) else []


def _references(node: Node) -> list[str]:
    """Return each reference that occurs, once."""
    found: dict[str, None] = {}
    ahead = [node]
    while ahead:
        part = ahead.pop()
        if isinstance(part, Mapping):
            reference = part.get("$ref")
            if isinstance(reference, str):
                found[reference] = None
            ahead += part.values()
        elif isinstance(part, list):
            ahead += part
    return list(found)


def _target(schema: Node, pointer: str) -> Node:
    """Return what a reference of this document points to; true for what is elsewhere."""
    node = schema
    if pointer[:1] != "#" or (pointer[1:] and pointer[1:2] != "/"):
        return True
    for name in pointer[2:].split("/") if pointer[1:] else ():
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return True
    return node
