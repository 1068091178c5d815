"""Grammars of tool calls: where a call is asked for, the model can write nothing else.

A grammar is in Lark's form, in the words of the model's own dialect. Its rule ``calls`` is one call
or several. Names and schemas are quoted; descriptions are not in it at all.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyvt.server.text_terminal import text_terminal
from pyvt.server.tool_parsers import mistral, pythonic, qwen_xml
from pyvt.structured.grammar import WHITESPACE
from pyvt.structured.vocabulary import special_name

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marks:
    """What of the model decides how a dialect's marks are written.

    Attributes:
        template: sources of its chat templates.
        specials: texts of its special tokens, which a grammar names without quotes.
    """

    template: str = ""
    specials: frozenset[str] = frozenset()

    def atom(self, text: str) -> str:
        """Return a mark for Lark."""
        return special_name(text) if text in self.specials else _text(text)


def calls_grammar(
    dialect: str, tools: Sequence[Mapping[str, Any]], marks: Marks, *, is_single: bool
) -> str:
    """Return rules whose ``calls`` is at least one call of the tools.

    Args:
        dialect: a name of ``GRAMMARS``.
        tools: functions with name, parameters and strict.
        marks: of the model.
        is_single: exactly one call.
    """
    return GRAMMARS[dialect](tools, marks, is_single)


# What ends the free texts of each dialect's grammar.
TEXT_ENDS: Mapping[str, tuple[str, ...]] = {"qwen_xml": ("\n</parameter>\n",)}


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Any, *, is_strict: bool) -> str:
    """Return the rule of JSON; a schema that is not strict gives up what it cannot honour."""
    if not isinstance(schema, Mapping):
        schema = {"type": "object"}
    options = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True, "lenient": not is_strict}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _parameters(tool: Mapping[str, Any]) -> Schema:
    return {"type": "object", **(tool.get("parameters") or {})}


def _rules(
    tools: Sequence[Mapping[str, Any]],
    one: Callable[[Mapping[str, Any]], str],
    *,
    around_call: tuple[str, str] = ("", ""),
    around_all: tuple[str, str] = ("", ""),
    between: str = "",
    is_single: bool,
) -> str:
    """Return the rules of calls: each is one of the tools; what stands around them is in Lark."""
    names = [f"tool_{number}" for number in range(len(tools))]
    more = "" if is_single else f"({between} call)*"
    lines = [
        _joined("calls:", around_all[0], "call", more, around_all[1]),
        _joined("call:", around_call[0], f"({' | '.join(names)})", around_call[1]),
    ]
    lines += [f"{name}: {one(tool)}" for name, tool in zip(names, tools, strict=True)]
    return "\n".join(lines)


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _object(tool: Mapping[str, Any], key: str) -> str:
    """Return the rule of ``{"name": …, key: {…}}``."""
    head = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "{key}": '
    return f"{_text(head)} {_arguments(tool)} {_text('}')}"


def _arguments(tool: Mapping[str, Any]) -> str:
    """Return the rule of a call's arguments as JSON."""
    return _json(_parameters(tool), is_strict=bool(tool.get("strict")))


def _hermes(tools: Sequence[Mapping[str, Any]], marks: Marks, is_single: bool) -> str:
    return _rules(
        tools,
        lambda tool: _object(tool, "arguments"),
        around_call=(_text("<tool_call>\n"), _text("\n</tool_call>")),
        between=_text("\n"),
        is_single=is_single,
    )


def _llama_json(tools: Sequence[Mapping[str, Any]], marks: Marks, is_single: bool) -> str:
    return _rules(
        tools,
        lambda tool: _object(tool, "parameters"),
        between=_text("; "),
        is_single=is_single,
    )


def _mistral(tools: Sequence[Mapping[str, Any]], marks: Marks, is_single: bool) -> str:
    """Return the rules of both forms: an array of objects, or a name and its arguments."""
    opening = marks.atom(mistral.OPENING)
    if mistral.ARGS not in marks.template:
        return _rules(
            tools,
            lambda tool: _object(tool, "arguments"),
            around_all=(f'{opening} " "? "["', '"]"'),
            between=_text(", "),
            is_single=is_single,
        )
    number = ""
    if mistral.CALL_ID in marks.template:
        number = f"{marks.atom(mistral.CALL_ID)} /[a-zA-Z0-9]{{9}}/"
    return _rules(
        tools,
        lambda tool: _joined(
            _text(tool["name"]), number, marks.atom(mistral.ARGS), _arguments(tool)
        ),
        around_call=(opening, ""),
        is_single=is_single,
    )


def _pythonic(tools: Sequence[Mapping[str, Any]], marks: Marks, is_single: bool) -> str:
    pairs = zip(pythonic.OPENINGS, pythonic.CLOSINGS, strict=True)
    tags = next((pair for pair in pairs if pair[0] in marks.template), ("", ""))
    opening, closing = (marks.atom(tag) if tag else "" for tag in tags)
    return _rules(
        tools,
        _python_call,
        around_all=(_joined(opening, '"["'), _joined('"]"', closing)),
        between=_text(", "),
        is_single=is_single,
    )


def _python_call(tool: Mapping[str, Any]) -> str:
    """Return the rule of ``f(a=1, b="x")``, with the arguments in the order of the schema.

    Which argument comes first decides where commas stand, so there is an alternative for each that
    may be the first: those up to the first one that is required, and none at all.
    """
    schema = _parameters(tool)
    required = schema.get("required") or ()
    is_strict = bool(tool.get("strict"))
    pairs = [
        (f"{_text(f'{name}=')} {_python_value(kind, schema, is_strict)}", name in required)
        for name, kind in (schema.get("properties") or {}).items()
    ]
    ways = []
    for place, (first, is_required) in enumerate(pairs):
        rest = [
            f"({_text(', ')} {pair}){'' if is_needed else '?'}"
            for pair, is_needed in pairs[place + 1 :]
        ]
        ways.append(_joined(first, *rest))
        if is_required:
            break
    arguments = f"({' | '.join(ways)})" if ways else ""
    if ways and not any(is_required for _, is_required in pairs):
        arguments += "?"
    return _joined(_text(f"{tool['name']}("), arguments, _text(")"))


def _python_value(kind: Any, schema: Schema, is_strict: bool) -> str:
    """Return the rule of a value: Python's words for truth, everything else as JSON."""
    if isinstance(kind, Mapping) and kind.get("type") == "boolean" and len(kind) <= 2:
        return '("True" | "False")'
    return _json(_with_definitions(kind, schema), is_strict=is_strict)


def _with_definitions(kind: Any, schema: Schema) -> Schema:
    """Return a property's schema with the definitions that it may refer to."""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**(kind if isinstance(kind, Mapping) else {}), **shared}


def _qwen_xml(tools: Sequence[Mapping[str, Any]], marks: Marks, is_single: bool) -> str:
    values = _Values()
    rules = _rules(
        tools,
        lambda tool: _function(tool, values),
        around_call=(_text("<tool_call>\n"), _text("</tool_call>")),
        between=_text("\n"),
        is_single=is_single,
    )
    return "\n".join([rules, *values.lines()])


class _Values:
    """Texts of parameters as they are written: a rule for each kind, ended by the closing tag."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def rule_of(self, kind: Mapping[str, Any], where: str, *, is_strict: bool) -> str:
        """Return the name of the rule of a string's schema, ``where`` for errors."""
        terminal = text_terminal(kind, where, is_strict=is_strict)
        return f"text_{self._numbers.setdefault(terminal, len(self._numbers))}"

    def lines(self) -> list[str]:
        """Return the rules in Lark."""
        lines = []
        for terminal, number in self._numbers.items():
            end = _text(TEXT_ENDS["qwen_xml"][0])
            lines += [f"text_{number}[lazy]: TEXT_{number} {end}", f"TEXT_{number}: {terminal}"]
        return lines


def _function(tool: Mapping[str, Any], values: _Values) -> str:
    """Return the rule of a function whose parameters come in the order of the schema."""
    schema = _parameters(tool)
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    is_strict = bool(tool.get("strict"))
    parts = [_text(f"<function={tool['name']}>\n")]
    for name, kind in properties.items():
        if isinstance(kind, Mapping) and qwen_xml.types_of(kind) == {"string"}:
            value = _words(kind) or values.rule_of(kind, name, is_strict=is_strict)
        else:
            rule = _json(_with_definitions(kind, schema), is_strict=is_strict)
            value = f"{rule} {_text(TEXT_ENDS['qwen_xml'][0])}"
        head = _text(f"<parameter={name}>\n")
        parts.append(f"({head} {value})" + ("" if name in required else "?"))
    return " ".join([*parts, _text("</function>\n")])


def _words(kind: Mapping[str, Any]) -> str:
    """Return the rule of a string that is one of some words; empty where it is not."""
    words = [kind["const"]] if "const" in kind else kind.get("enum")
    if not isinstance(words, list):
        return ""
    choices = " | ".join(_text(str(word)) for word in words)
    return f"({choices}) {_text(TEXT_ENDS['qwen_xml'][0])}"


# By the name of the dialect.
GRAMMARS: Mapping[str, Callable[[Sequence[Mapping[str, Any]], Marks, bool], str]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama_json": _llama_json,
    "mistral": _mistral,
    "pythonic": _pythonic,
}
