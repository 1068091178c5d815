"""Grammars of tool calls: where a call is asked for, the model can write nothing else.

A grammar is in Lark's form, in the words of the model's own dialect. Its rule ``calls`` is one call
or several. Names and schemas are quoted; descriptions are not in it at all.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyvt.structured.grammar import WHITESPACE

Schema = Mapping[str, Any]


def calls_grammar(dialect: str, tools: Sequence[Mapping[str, Any]], *, is_single: bool) -> str:
    """Return rules whose ``calls`` is at least one call of the tools.

    Args:
        dialect: a name of ``GRAMMARS``.
        tools: functions with name, parameters and strict.
        is_single: exactly one call.
    """
    return GRAMMARS[dialect](tools, is_single)


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
    frame: tuple[str, str],
    between: str,
    is_single: bool,
) -> str:
    """Return the rules of calls: each is one of the tools inside a frame."""
    names = [f"tool_{number}" for number in range(len(tools))]
    more = "" if is_single else f" ({_text(between)} call)*"
    opening, closing = (f"{_text(text)} " if text else "" for text in frame)
    lines = [f"calls: call{more}", f"call: {opening}({' | '.join(names)}) {closing}".rstrip()]
    lines += [f"{name}: {one(tool)}" for name, tool in zip(names, tools, strict=True)]
    return "\n".join(lines)


def _object(tool: Mapping[str, Any], key: str) -> str:
    """Return the rule of ``{"name": …, key: {…}}``."""
    head = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "{key}": '
    arguments = _json(_parameters(tool), is_strict=bool(tool.get("strict")))
    return f"{_text(head)} {arguments} {_text('}')}"


def _hermes(tools: Sequence[Mapping[str, Any]], is_single: bool) -> str:
    frame = ("<tool_call>\n", "\n</tool_call>")
    return _rules(
        tools,
        lambda tool: _object(tool, "arguments"),
        frame=frame,
        between="\n",
        is_single=is_single,
    )


def _llama_json(tools: Sequence[Mapping[str, Any]], is_single: bool) -> str:
    return _rules(
        tools,
        lambda tool: _object(tool, "parameters"),
        frame=("", ""),
        between="; ",
        is_single=is_single,
    )


def _qwen_xml(tools: Sequence[Mapping[str, Any]], is_single: bool) -> str:
    rules = _rules(
        tools,
        _function,
        frame=("<tool_call>\n", "</tool_call>"),
        between="\n",
        is_single=is_single,
    )
    value = 'text_value[lazy]: TEXT_VALUE "\\n</parameter>\\n"'
    return f"{rules}\n{value}\nTEXT_VALUE: /(.|\\n)*/"


def _function(tool: Mapping[str, Any]) -> str:
    """Return the rule of a function whose parameters come in the order of the schema."""
    schema = _parameters(tool)
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    parts = [_text(f"<function={tool['name']}>\n")]
    for name, kind in properties.items():
        value = _value(kind, schema, is_strict=bool(tool.get("strict")))
        head = _text(f"<parameter={name}>\n")
        parts.append(f"({head} {value})" + ("" if name in required else "?"))
    return " ".join([*parts, _text("</function>\n")])


def _value(kind: Any, schema: Schema, *, is_strict: bool) -> str:
    """Return the rule of a parameter's value: text as it is, anything else as JSON."""
    end = _text("\n</parameter>\n")
    is_text = isinstance(kind, Mapping) and kind.get("type") == "string"
    if is_text and isinstance(kind.get("enum"), list):
        words = " | ".join(_text(str(word)) for word in kind["enum"])
        return f"({words}) {end}"
    if is_text:
        return "text_value"
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    own = dict(kind) if isinstance(kind, Mapping) else {}
    return f"{_json({**own, **shared}, is_strict=is_strict)} {end}"


# By the name of the dialect. Where one is missing, a call cannot be forced.
GRAMMARS: Mapping[str, Callable[[Sequence[Mapping[str, Any]], bool], str]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama_json": _llama_json,
}
