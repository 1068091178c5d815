"""Grammars of free text in which calls may begin: ``strict`` where the model chooses.

Text is free until it begins a call in the words of the model's dialect. From there on the name is
one of the tools' and the arguments satisfy its schema; a tool that is not strict takes any. What
begins a call is what the dialect's parser takes for one, and nothing of the reasoning is.

Marks are lazy lexemes: one is taken as soon as it is there, before any text that could go on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyvt.server.answer.reasoning import ReasoningTags, Start
from pyvt.server.schema_rules import Losses, Tool, json_rule
from pyvt.server.text_terminal import ANY
from pyvt.server.tool_grammar import (
    Marks,
    call_object,
    joined,
    json_arguments,
    mistral_named,
    python_arguments,
)
from pyvt.server.tool_parsers import hermes, llama_json, mistral, pythonic, qwen_xml
from pyvt.server.xml_function import XmlFunctions
from pyvt.structured.grammar import quoted

_SPACE = r"[\s\x{1c}-\x{1f}]*"
_TERMINALS = f"TEXT: /{ANY}/\nSPACE: /{_SPACE}/"
# Arguments of Python that no schema says more of.
_PYTHON = r"""python_any: (python_pair (PYTHON_COMMA python_pair)*)? ")"
python_pair: PYTHON_KEY? python_value
python_value: PYTHON_ATOM | PYTHON_TEXT
  | PYTHON_LIST (python_value (PYTHON_COMMA python_value)*)? PYTHON_LIST_END
  | PYTHON_DICT (python_item (PYTHON_COMMA python_item)*)? PYTHON_DICT_END
python_item: python_value PYTHON_COLON python_value
PYTHON_KEY: /[A-Za-z_][A-Za-z_0-9]* ?= ?/
PYTHON_ATOM: /-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|True|False|None|true|false|null/
PYTHON_TEXT: /"([^"\\\n]|\\[^\n])*"|'([^'\\\n]|\\[^\n])*'/
PYTHON_COMMA: /,[ \n]?/
PYTHON_COLON: /:[ \n]?/
PYTHON_LIST: "["
PYTHON_LIST_END: "]"
PYTHON_DICT: "{"
PYTHON_DICT_END: "}" """


@dataclass(slots=True)
class _Calls:
    """How a dialect writes calls in a text.

    Attributes:
        begun: a call, or a list of calls, behind text; each is a mark and what follows it.
        at_start: the rule of what stands at the beginning of the answer alone, empty for nothing.
        tail: the terminal of text without calls.
        lines: rules that the others name.
    """

    begun: list[tuple[str, str]] = field(default_factory=list)
    at_start: str = ""
    tail: str = "TEXT"
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning before the answer.

    Attributes:
        tags: what surrounds it.
        start: where the text begins, as ``reasoning.py`` has it.
    """

    tags: ReasoningTags
    start: Start


def text_with_calls(
    dialect: str, tools: Sequence[Tool], marks: Marks, *, is_single: bool, thought: Thought | None
) -> str:
    """Return the grammar of a text that may have calls in it.

    Args:
        dialect: a name of the dialects.
        tools: functions with name, parameters and strict.
        marks: of the model.
        is_single: nothing follows the first call.
        thought: what may come before the answer.

    Raises:
        WireException: a strict tool has a schema that the dialect cannot keep.
    """
    calls = _DIALECTS[dialect](tools, marks, is_single)
    ways = [calls.at_start] if calls.at_start else []
    lines = [*calls.lines, f"tail: {calls.tail}", _TERMINALS]
    for number, (mark, rest) in enumerate(calls.begun):
        atom = marks.atom(mark)
        lines += [_up_to(f"head_{number}", "TEXT", atom), f"begun_{number}: head_{number} {rest}"]
    begun = " | ".join(f"begun_{number}" for number in range(len(calls.begun)))
    if is_single:
        body = " | ".join(["tail", *ways, *([begun] if begun else [])])
    else:
        body = joined(*(f"({way})?" for way in ways), f"({begun})*" if begun else "", "tail")
    return "\n".join([*_start(thought, marks), f"body: {body}", *lines])


def _up_to(name: str, text: str, atom: str) -> str:
    """Return the rule of text up to a mark, which ends it where the mark is text too."""
    return f"{name}: {text} {atom}" if atom[0] == "<" else f"{name}[lazy]: {text} {atom}"


def _start(thought: Thought | None, marks: Marks) -> list[str]:
    """Return the rules of reasoning that the answer follows, or that the text ends in."""
    if thought is None or thought.start == "closed":
        return ["start: body"]
    closed = _up_to("thought", "TEXT", marks.atom(thought.tags.closing))
    if thought.start == "open":
        return ["start: thought body | thinking", "thinking: TEXT", closed]
    opened = _up_to("opened", "SPACE", marks.atom(thought.tags.opening))
    return ["start: opened thought body | opened thinking | body", "thinking: TEXT", closed, opened]


def _pattern(text: str) -> str:
    """Return the inside of a regular expression of one text."""
    return "".join(c if c.isalnum() or c == "_" else f"\\x{{{ord(c):x}}}" for c in text)


def _spellings(text: str) -> str:
    """Return the inside of a regular expression of the ways to write a text in JSON."""
    return "".join(f"({'|'.join(map(_pattern, _of_char(char)))})" for char in text)


def _of_char(char: str) -> list[str]:
    units = json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
    digits = {units, units.replace("\\u", "?").upper().replace("?", "\\u")}
    plain = json.dumps(char, ensure_ascii=False)[1:-1]
    return sorted({plain, *digits, *(("\\/",) if char == "/" else ())})


def _any(tool: Tool) -> Tool:
    """Return a tool as its dialect of JSON lets it be called: one that is not strict takes any."""
    return tool if tool.get("strict") else {"name": tool["name"]}


def _one_of(rules: Sequence[str]) -> str:
    return f"({' | '.join(rules)})"


def _several(one: str, between: str, *, is_single: bool) -> str:
    return one if is_single else f"{one} ({between} {one})*"


def _hermes(tools: Sequence[Tool], marks: Marks, is_single: bool) -> _Calls:
    found = _one_of([call_object(_any(tool), "arguments") for tool in tools])
    closing = quoted(f"\n{hermes.CLOSING}")
    return _Calls(begun=[(hermes.OPENING, f'"\\n" {found} {closing}')])


def _mistral(tools: Sequence[Tool], marks: Marks, is_single: bool) -> _Calls:
    if mistral.ARGS in marks.template:
        named = _one_of([mistral_named(_any(tool), marks) for tool in tools])
        return _Calls(begun=[(mistral.OPENING, named)])
    found = _one_of([call_object(_any(tool), "arguments") for tool in tools])
    calls = _several("call", quoted(", "), is_single=is_single)
    return _Calls(begun=[(mistral.OPENING, f'" "? "[" {calls} "]"')], lines=[f"call: {found}"])


def _qwen_xml(tools: Sequence[Tool], marks: Marks, is_single: bool) -> _Calls:
    """Return the calls in a block, or without its opening tag, which models forget."""
    functions = XmlFunctions()

    def one_of(head: str) -> str:
        return _one_of(
            [
                functions.rule_of(tool, head=head)
                if tool.get("strict")
                else functions.free_rule_of(tool, head=head)
                for tool in tools
            ]
        )

    closing = quoted(qwen_xml.CLOSING)
    block = f'"\\n" {one_of(qwen_xml.FUNCTION)} {closing}'
    bare = f"{one_of('')} {closing}?"
    begun = [(qwen_xml.OPENING, block), (qwen_xml.FUNCTION, bare)]
    return _Calls(begun=begun, lines=functions.lines())


def _pythonic(tools: Sequence[Tool], marks: Marks, is_single: bool) -> _Calls:
    """Return the lists of calls behind a tag, or without one at the start of the answer."""
    losses = Losses()
    lines, calls, heads = [_PYTHON], [], []
    for number, tool in enumerate(tools):
        rest = python_arguments(tool, losses) if tool.get("strict") else "python_any"
        opening = rf"{_SPACE}\[{_SPACE}{_pattern(tool['name'])}{_SPACE}\("
        lines += [f"rest_{number}: {rest}", f"list_{number}[lazy]: /{opening}/"]
        calls.append(f"{quoted(tool['name'] + '(')} rest_{number}")
        heads.append(f"list_{number} rest_{number}")
    more = "" if is_single else f"({quoted(', ')} call)*"
    lines += [f"call: {_one_of(calls)}", f'list: {_one_of(heads)} {more} "]"']
    begun = [
        (opening, joined('"[" call', more, '"]"', marks.atom(closing)))
        for opening, closing in zip(pythonic.OPENINGS, pythonic.CLOSINGS, strict=True)
    ]
    return _Calls(begun=begun, at_start="list", lines=lines)


_PARAMETERS = ', "parameters": '


def _llama_json(tools: Sequence[Tool], marks: Marks, is_single: bool) -> _Calls:
    """Return objects that begin with a tool's name; no other object may name one later on."""
    lines, heads = [], []
    space = r"[ \t\r\n]*"
    lead = r"[;\s]*"
    tag = llama_json.TAG
    if tag not in marks.specials:
        lead = f"{lead}({_pattern(tag)}{lead})?"
    kind = rf'("type"{space}:{space}"function"{space},{space})?'
    for number, tool in enumerate(tools):
        name = _pattern(json.dumps(tool["name"], ensure_ascii=False))
        head = rf'{lead}\{{{space}{kind}"name"{space}:{space}{name}'
        arguments = json_rule({"type": "object"}, is_strict=False)
        if tool.get("strict"):
            arguments = json_arguments(tool)
        parameters = f"{quoted(_PARAMETERS)} {arguments} {quoted('}')}"
        lines += [f"named_{number}[lazy]: /{head}/", f"call_{number}: named_{number} {parameters}"]
        heads.append(f"call_{number}")
    names = "|".join(_spellings(tool["name"]) for tool in tools)
    called = rf'{lead}\{{{ANY}"{_spellings("name")}"{space}:{space}"({names})"{ANY}'
    lines.append(f"OTHER: /{ANY}/ & ~/{called}/")
    lead_in = ""
    if tag in marks.specials:
        lines += [f"tag: LEAD {marks.atom(tag)}", "LEAD: /[;\\s]*/"]
        lead_in = "tag? "
    one = f"{lead_in}{_one_of(heads)}"
    return _Calls(
        at_start=one if is_single else f"({one})+",
        tail=f"{lead_in}OTHER",
        lines=lines,
    )


_DIALECTS: Mapping[str, Callable[[Sequence[Tool], Marks, bool], _Calls]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama_json": _llama_json,
    "mistral": _mistral,
    "pythonic": _pythonic,
}
