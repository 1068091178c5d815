"""Grammars of calls in a model whose marks are special tokens: named by token, not by text."""

from typing import Any

import pytest

from pyvt.sampling_params import StructuredOutputsParams
from pyvt.server.tool_grammar import Marks, calls_grammar
from pyvt.server.tool_parsers import TOOL_DIALECTS
from pyvt.structured import GrammarCompiler
from pyvt.testing.fakes import FakeTokenizer
from tests.server.splits import every_cut

TOOL: dict[str, Any] = {
    "name": "f",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


class MarkTokenizer(FakeTokenizer):
    """The byte tokenizer, whose special tokens are marks of tool calls."""

    MARKS = (
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call_start|>", "<|tool_call_end|>"),
        *("<|python_tag|>", "[THINK]", "[/THINK]"),
    )
    vocab_size = 260 + len(MARKS)
    special_ids = frozenset(range(256, 260 + len(MARKS)))
    control_texts = (*FakeTokenizer.control_texts, *MARKS)


TOKENIZER = MarkTokenizer()
IDS = {text: 256 + i for i, text in enumerate(MarkTokenizer.control_texts)}


def ids_of(text: str) -> list[int]:
    """Return a text's ids, its marks as special tokens."""
    ids: list[int] = []
    while text:
        mark = next((m for m in MarkTokenizer.MARKS if text.startswith(m)), None)
        ids += list(text[0].encode()) if mark is None else [IDS[mark]]
        text = text[len(mark or text[0]) :]
    return ids


CASES = {
    "array": (
        "mistral",
        "[TOOL_CALLS]",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, '
        '{"name": "f", "arguments": {"a": 2, "b": true}}]',
    ),
    "named": ("mistral", "[ARGS]", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{"a": 2}'),
    "numbered": (
        "mistral",
        "[ARGS] [CALL_ID]",
        '[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{"a": 1, "b": false}',
    ),
    "python": (
        "pythonic",
        "<|tool_call_start|>",
        "<|tool_call_start|>[f(a=1), f(a=2, b=True)]<|tool_call_end|>",
    ),
    "untagged": ("pythonic", "", "[f(a=1, b=False)]"),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_let_through_and_their_marks_are_tokens(name: str) -> None:
    dialect, template, text = CASES[name]
    marks = Marks(template, frozenset(MarkTokenizer.control_texts))
    rules = calls_grammar(dialect, [TOOL], marks, is_single=False)
    params = StructuredOutputsParams(grammar=f"start: calls\n{rules.text}")
    compiler = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, (MarkTokenizer.EOS,))
    matcher = compiler.compile(params).start((), max_tokens=None)

    for token_id in ids_of(text):
        (mask,) = matcher.masks((), 500)
        assert mask[token_id], (name, token_id)
        if token_id >= 256:
            spelled = TOKENIZER.token_bytes(token_id)[0]
            assert not mask[spelled], "a mark may not be spelled out"
        matcher.advance((token_id,))
    assert matcher.error is None
    assert matcher.masks((), 500)[0, MarkTokenizer.EOS]
    compiler.close()


@pytest.mark.parametrize("name", CASES)
def test_calls_that_are_let_through_are_read(name: str) -> None:
    dialect, _, text = CASES[name]
    schemas = {"f": TOOL["parameters"]}

    every_cut(lambda: TOOL_DIALECTS[dialect].parser(schemas), text)
    parser = TOOL_DIALECTS[dialect].parser(schemas)
    parser.push(text)
    parser.finish()
    assert parser.num_calls == text.count("f[") + text.count("f(") + text.count('"f"')
