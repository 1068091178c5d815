"""How models write tool calls: the table of dialects, and which of them a template speaks."""

from collections.abc import Callable
from dataclasses import dataclass

from pyvt.server.tool_parsers.base import ToolParser, ToolSchemas, schemas_of
from pyvt.server.tool_parsers.hermes import HermesParser
from pyvt.server.tool_parsers.llama_json import LlamaJsonParser
from pyvt.server.tool_parsers.mistral import MistralParser
from pyvt.server.tool_parsers.pythonic import PythonicParser
from pyvt.server.tool_parsers.qwen_xml import QwenXmlParser

__all__ = [
    "TOOL_DIALECTS",
    "ToolDialect",
    "ToolParser",
    "ToolSchemas",
    "detect_tools",
    "schemas_of",
]


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """One way to write calls.

    Attributes:
        name: what ``--tool-call-parser`` takes.
        parser: makes the parser of one answer.
        signs: a template that has all texts of one of these rows speaks the dialect.
        not_signs: unless it has one of these.
        needs_special: the tags are special tokens, which must stay in the text.
        num_id_chars: length of a call's id where the template is strict about it, 0 for ours.
    """

    name: str
    parser: Callable[[ToolSchemas], ToolParser]
    signs: tuple[tuple[str, ...], ...]
    not_signs: tuple[str, ...] = ()
    needs_special: bool = False
    num_id_chars: int = 0


# In the order in which they are tried: the more particular signs come first.
TOOL_DIALECTS = {
    dialect.name: dialect
    for dialect in (
        ToolDialect("qwen_xml", QwenXmlParser, (("<function=", "<parameter=", "<tool_call>"),)),
        ToolDialect(
            "mistral", MistralParser, (("[TOOL_CALLS]",),), needs_special=True, num_id_chars=9
        ),
        ToolDialect(
            "hermes",
            HermesParser,
            (("<tool_call>", '"name"', '"arguments"'),),
            not_signs=("<arg_key>",),
        ),
        ToolDialect(
            "pythonic",
            PythonicParser,
            (("<|python_start|>",), ("<|tool_call_start|>",), ("func_name1(params_name1",)),
            needs_special=True,
        ),
        ToolDialect(
            "llama_json",
            LlamaJsonParser,
            (('"parameters": ', "<|python_tag|>"), ('"parameters": ', "ipython")),
            needs_special=True,
        ),
    )
}


def detect_tools(template: str) -> ToolDialect | None:
    """Return the dialect that a chat template speaks; None where it speaks none that is known."""
    for dialect in TOOL_DIALECTS.values():
        has_signs = any(all(sign in template for sign in row) for row in dialect.signs)
        if has_signs and not any(sign in template for sign in dialect.not_signs):
            return dialect
    return None
