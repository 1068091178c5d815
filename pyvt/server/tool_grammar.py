"""Grammars of tool calls: where a call is asked for, the model can write nothing else.

A grammar is in Lark's form, in the words of the model's own dialect. Its rule ``calls`` is one call
or several. Names and schemas are quoted; descriptions are not in it at all. Calls that may come in
the middle of a text are in ``calls_in_text.py``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyvt.server.schema_rules import (
    Losses,
    Schema,
    Tool,
    json_rule,
    parameters_of,
    properties_of,
    with_definitions,
)
from pyvt.server.tool_parsers import hermes, mistral, pythonic
from pyvt.server.xml_function import TEXT_END, XmlFunctions
from pyvt.structured.grammar import quoted
from pyvt.structured.vocabulary import special_name


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
        return special_name(text) if text in self.specials else quoted(text)


@dataclass(frozen=True, slots=True)
class CallRules:
    """Rules of a grammar, and what of the tools' schemas they give up.

    Attributes:
        text: in Lark.
        warnings: a text for each keyword that a tool that is not strict has in vain.
    """

    text: str
    warnings: tuple[str, ...] = ()


def calls_grammar(
    dialect: str, tools: Sequence[Tool], marks: Marks, *, is_single: bool
) -> CallRules:
    """Return rules whose ``calls`` is at least one call of the tools.

    Args:
        dialect: a name of ``GRAMMARS``.
        tools: functions with name, parameters and strict.
        marks: of the model.
        is_single: exactly one call.
    """
    return GRAMMARS[dialect](tools, marks, is_single)


# What ends the free texts of each dialect's grammar.
TEXT_ENDS: Mapping[str, tuple[str, ...]] = {"qwen_xml": (TEXT_END, ">\n"), "pythonic": ("'",)}


def _rules(
    tools: Sequence[Tool],
    one: Callable[[Tool], str],
    *,
    around_call: tuple[str, str] = ("", ""),
    around_all: tuple[str, str] = ("", ""),
    between: str = "",
    is_single: bool,
    losses: Losses | None = None,
) -> CallRules:
    """Return the rules of calls: each is one of the tools; what stands around them is in Lark."""
    names = [f"tool_{number}" for number in range(len(tools))]
    more = "" if is_single else f"({between} call)*"
    lines = [
        joined("calls:", around_all[0], "call", more, around_all[1]),
        joined("call:", around_call[0], f"({' | '.join(names)})", around_call[1]),
    ]
    lines += [f"{name}: {one(tool)}" for name, tool in zip(names, tools, strict=True)]
    return CallRules("\n".join(lines), () if losses is None else tuple(losses.warnings))


def joined(*parts: str) -> str:
    """Return a sequence in Lark, of the parts that are not empty."""
    return " ".join(part for part in parts if part)


def call_object(tool: Tool, key: str) -> str:
    """Return the rule of ``{"name": …, key: {…}}``."""
    head = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "{key}": '
    return f"{quoted(head)} {json_arguments(tool)} {quoted('}')}"


def json_arguments(tool: Tool) -> str:
    """Return the rule of a call's arguments as JSON."""
    return json_rule(parameters_of(tool), is_strict=bool(tool.get("strict")))


def _hermes(tools: Sequence[Tool], marks: Marks, is_single: bool) -> CallRules:
    return _rules(
        tools,
        lambda tool: call_object(tool, "arguments"),
        around_call=(quoted(f"{hermes.OPENING}\n"), quoted(f"\n{hermes.CLOSING}")),
        between=quoted("\n"),
        is_single=is_single,
    )


def _llama_json(tools: Sequence[Tool], marks: Marks, is_single: bool) -> CallRules:
    return _rules(
        tools,
        lambda tool: call_object(tool, "parameters"),
        between=quoted("; "),
        is_single=is_single,
    )


def _mistral(tools: Sequence[Tool], marks: Marks, is_single: bool) -> CallRules:
    """Return the rules of both forms: an array of objects, or a name and its arguments."""
    opening = marks.atom(mistral.OPENING)
    if mistral.ARGS not in marks.template:
        return _rules(
            tools,
            lambda tool: call_object(tool, "arguments"),
            around_all=(f'{opening} " "? "["', '"]"'),
            between=quoted(", "),
            is_single=is_single,
        )
    return _rules(
        tools,
        lambda tool: mistral_named(tool, marks),
        around_call=(opening, ""),
        is_single=is_single,
    )


def mistral_named(tool: Tool, marks: Marks) -> str:
    """Return the rule of ``f[ARGS]{…}``, with an id where the template has one."""
    number = ""
    if mistral.CALL_ID in marks.template:
        number = f"{marks.atom(mistral.CALL_ID)} /[a-zA-Z0-9]{{9}}/"
    return joined(quoted(tool["name"]), number, marks.atom(mistral.ARGS), json_arguments(tool))


def _pythonic(tools: Sequence[Tool], marks: Marks, is_single: bool) -> CallRules:
    pairs = zip(pythonic.OPENINGS, pythonic.CLOSINGS, strict=True)
    tags = next((pair for pair in pairs if pair[0] in marks.template), ("", ""))
    opening, closing = (marks.atom(tag) if tag else "" for tag in tags)
    losses = Losses()
    return _rules(
        tools,
        lambda tool: f"{quoted(tool['name'] + '(')} {python_arguments(tool, losses)}",
        around_all=(joined(opening, '"["'), joined('"]"', closing)),
        between=quoted(", "),
        is_single=is_single,
        losses=losses,
    )


def python_arguments(tool: Tool, losses: Losses) -> str:
    """Return the rule of ``a=1, b="x")``, with the arguments in the order of the schema.

    Which argument comes first decides where commas stand, so there is an alternative for each that
    may be the first: those up to the first one that is required, and none at all.
    """
    losses.add_object(tool)
    schema = parameters_of(tool)
    required = schema.get("required") or ()
    is_strict = bool(tool.get("strict"))
    pairs = [
        (f"{quoted(f'{name}=')} {_python_value(kind, schema, is_strict)}", name in required)
        for name, kind in properties_of(schema).items()
    ]
    ways = []
    for place, (first, is_required) in enumerate(pairs):
        rest = [
            f"({quoted(', ')} {pair}){'' if is_needed else '?'}"
            for pair, is_needed in pairs[place + 1 :]
        ]
        ways.append(joined(first, *rest))
        if is_required:
            break
    arguments = f"({' | '.join(ways)})" if ways else ""
    if ways and not any(is_required for _, is_required in pairs):
        arguments += "?"
    return joined(arguments, quoted(")"))


_PLAIN = frozenset(("type", "title", "description", "default"))


def _python_value(kind: Any, schema: Schema, is_strict: bool) -> str:
    """Return the rule of a value: Python's words for truth, everything else as JSON."""
    is_plain = isinstance(kind, Mapping) and kind.keys() <= _PLAIN
    if is_plain and kind.get("type") == "boolean":
        return '("True" | "False")'
    return json_rule(with_definitions(kind, schema), is_strict=is_strict)


def _qwen_xml(tools: Sequence[Tool], marks: Marks, is_single: bool) -> CallRules:
    functions = XmlFunctions()
    rules = _rules(
        tools,
        functions.rule_of,
        around_call=(quoted("<tool_call>\n"), quoted("</tool_call>")),
        between=quoted("\n"),
        is_single=is_single,
        losses=functions.losses,
    )
    return CallRules("\n".join([rules.text, *functions.lines()]), rules.warnings)


# By the name of the dialect.
GRAMMARS: Mapping[str, Callable[[Sequence[Tool], Marks, bool], CallRules]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama_json": _llama_json,
    "mistral": _mistral,
    "pythonic": _pythonic,
}
