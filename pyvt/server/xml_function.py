"""Rules of a function whose parameters stand one by one between tags, a text as it is written."""

from collections.abc import Mapping
from typing import Any

from pyvt.server.schema_rules import (
    Losses,
    Tool,
    json_rule,
    parameters_of,
    properties_of,
    with_definitions,
)
from pyvt.server.text_terminal import ANY, text_terminal
from pyvt.server.tool_parsers import qwen_xml
from pyvt.structured.grammar import quoted

# What ends the text of a parameter.
TEXT_END = f"\n{qwen_xml.PARAMETER_END}\n"
# Texts that end where the parser ends them, too.
_WITHOUT_END = f"~/(.|\\n)*{qwen_xml.PARAMETER_END.replace('/', chr(92) + '/')}(.|\\n)*/"


class XmlFunctions:
    """Functions of one grammar, which share the rules of their texts.

    Attributes:
        losses: what the functions that are not strict give up.
    """

    def __init__(self) -> None:
        self.losses = Losses()
        self._numbers: dict[str, int] = {}

    def rule_of(self, tool: Tool, *, head: str = qwen_xml.FUNCTION) -> str:
        """Return the rule of a function whose parameters come in the order of the schema.

        Args:
            tool: the function.
            head: what stands before the name, where it is not written yet.
        """
        self.losses.add_object(tool)
        schema = parameters_of(tool)
        required = schema.get("required") or ()
        is_strict = bool(tool.get("strict"))
        parts = [_named(tool, head)]
        for name, kind in properties_of(schema).items():
            if isinstance(kind, Mapping) and qwen_xml.types_of(kind) == {"string"}:
                value = self._text(tool, name, kind)
            else:
                rule = json_rule(with_definitions(kind, schema), is_strict=is_strict)
                value = f"{rule} {quoted(TEXT_END)}"
            opening = quoted(f"{qwen_xml.PARAMETER}{name}>\n")
            parts.append(f"({opening} {value})" + ("" if name in required else "?"))
        return " ".join([*parts, _END])

    def free_rule_of(self, tool: Tool, *, head: str = qwen_xml.FUNCTION) -> str:
        """Return the rule of a function with any parameters."""
        opening = f"/{qwen_xml.PARAMETER}[^<>\\n]+>\\n/"
        value = self._rule(f"/{ANY}/")
        return f"{_named(tool, head)} ({opening} {value})* {_END}"

    def lines(self) -> list[str]:
        """Return the rules of texts that the functions name."""
        lines = []
        for terminal, number in self._numbers.items():
            lines.append(f"text_{number}[lazy]: TEXT_{number} {quoted(TEXT_END)}")
            lines.append(f"TEXT_{number}: {terminal} & {_WITHOUT_END}")
        return lines

    def _text(self, tool: Tool, name: str, kind: Mapping[str, Any]) -> str:
        words = _words(kind)
        terminal, lost = text_terminal(kind, is_chosen=bool(words))
        if "enum" in kind and not words:
            lost.append("enum")
        self.losses.add(tool, lost, name)
        return words or self._rule(terminal)

    def _rule(self, terminal: str) -> str:
        return f"text_{self._numbers.setdefault(terminal, len(self._numbers))}"


_END = quoted(f"{qwen_xml.FUNCTION_END}\n")


def _named(tool: Tool, head: str) -> str:
    return quoted(f"{head}{tool['name']}>\n")


def _words(kind: Mapping[str, Any]) -> str:
    """Return the rule of a string that is one of some words; empty where there are none."""
    words = [kind["const"]] if "const" in kind else kind.get("enum")
    if not isinstance(words, list) or not words:
        return ""
    choices = " | ".join(quoted(str(word)) for word in words)
    return f"({choices}) {quoted(TEXT_END)}"
