"""Free text in which calls may begin: what the grammar lets through, and what the parser reads."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
import pytest

from pyvt.sampling_params import StructuredOutputsParams
from pyvt.server.answer.events import CallArguments, CallStart, merged
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.answer.reasoning import REASONING_TAGS, Start
from pyvt.server.calls_in_text import Thought, text_with_calls
from pyvt.server.errors import WireException
from pyvt.server.tool_grammar import TEXT_ENDS, Marks
from pyvt.server.tool_parsers import TOOL_DIALECTS
from pyvt.structured import GrammarCompiler
from pyvt.testing.fakes import FakeTokenizer
from tests.server.test_tool_grammar import MarkTokenizer, ids_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "maximum": 9},
        "s": {"type": "string", "maxLength": 4},
        "is": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["n"],
    "additionalProperties": False,
}
STRICT = {"name": "f", "parameters": SCHEMA, "strict": True}
LAX = {"name": "g", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TOOLS = [STRICT, LAX]
# A dialect, and what of its marks the template names; those with a star are special tokens.
FORMS = {
    "hermes": ("hermes", ""),
    "qwen_xml": ("qwen_xml", ""),
    "llama_json": ("llama_json", ""),
    "llama_json*": ("llama_json", "<|python_tag|>"),
    "mistral": ("mistral", ""),
    "mistral*": ("mistral", "[ARGS]"),
    "pythonic": ("pythonic", ""),
    "pythonic*": ("pythonic", "<|tool_call_start|>"),
}
XML = "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
XML_LAX = "<function=g>\n<parameter=y>\nz <b>\n</parameter>\n</function>\n</tool_call>"


@dataclass(frozen=True)
class Texts:
    """Texts of a dialect: without calls, with calls and how many, and what is not let through.

    Of a text that is not let through, all that stands before ``‸`` is.
    """

    free: Sequence[str]
    calls: Sequence[tuple[str, int]]
    wrong: Sequence[str]


TEXTS = {
    "hermes": Texts(
        ["", 'A <b> {"name": "f"} [f(', "<tool_cal x", "a </tool_call>"],
        [
            ('Hm.\n<tool_call>\n{"name": "f", "arguments": {"n": 1, "s": "é"}}\n</tool_call>', 1),
            ('<tool_call>\n{"name": "g", "arguments": {"x": "y"}}\n</tool_call> ok', 1),
            (
                '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call> and '
                '<tool_call>\n{"name": "f", "arguments": {"n": 2}}\n</tool_call>',
                2,
            ),
        ],
        [
            '<tool_call>\n{"name": "‸h"',
            "x<tool_call>‸x",
            '<tool_call>\n{"name": "f", "arguments": {"‸s',
            '<tool_call>\n{"name": "f", "arguments": {"n": 1‸0',
            '<tool_call>\n{"name": "g", "arguments": {"x": 1}}\n</tool_call><tool_call>\n‸x',
        ],
    ),
    "qwen_xml": Texts(
        ["", "see <function> and <tool_calls>"],
        [
            (f"Hm <tool_call>\n{XML}", 1),
            (f"{XML}", 1),
            (f"<tool_call>\n{XML_LAX}\n<tool_call>\n{XML}!", 2),
        ],
        [
            "<tool_call>\n<function=‸h",
            "x <function=‸h",
            "<tool_call>\n<function=f>\n<parameter=‸s",
            "<tool_call>\n<function=f>\n<parameter=n>\n‸a",
            "<function=g>\n<parameter=y>\nz</parameter‸>",
        ],
    ),
    "llama_json": Texts(
        ["", '{"name": "h", "parameters": {"n": "x"}}', 'so {"name": "f", "parameters": 1}'],
        [
            ('{"name": "f", "parameters": {"n": 1}}', 1),
            ('\n{"type": "function", "name": "f", "parameters": {"n": 1}}', 1),
            ('{"name": "g", "parameters": {"x": "y"}}; {"name": "f", "parameters": {"n": 1}}', 2),
            ('{"name": "f", "parameters": {"n": 1}} done', 1),
        ],
        [
            '{"name": "f"‸}',
            '{"name": "f", "parameters": {"‸s',
            '{"parameters": {"n": "x"}, "name": "f‸"',
            '{"x": 1, "n\\u0061me": "f‸"',
            '{"x": 1, "name": "\\u0066‸"',
        ],
    ),
    "llama_json*": Texts(
        ["<|python_tag|>print(1)"],
        [('<|python_tag|>{"name": "f", "parameters": {"n": 1}}', 1)],
        ['<|python_tag|>{"name": "f", "parameters": {"‸s'],
    ),
    "mistral": Texts(
        ["", "a [b] [TOOL_CALL]"],
        [
            ('Hm[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}]', 1),
            (
                '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, '
                '{"name": "g", "arguments": {}}]',
                2,
            ),
        ],
        ["[TOOL_CALLS]‸{", '[TOOL_CALLS][{"name": "f", "arguments": {"‸s', "[TOOL_CALLS][‸]"],
    ),
    "mistral*": Texts(
        ["", "a [b]"],
        [
            ('Hm[TOOL_CALLS]f[ARGS]{"n": 1}', 1),
            ('[TOOL_CALLS]g[ARGS]{"x": ""}[TOOL_CALLS]f[ARGS]{"n": 1}', 2),
        ],
        ["[TOOL_CALLS]‸h", "[TOOL_CALLS]f‸ ", '[TOOL_CALLS]f[ARGS]{"‸s'],
    ),
    "pythonic": Texts(
        ["", "[f](x)", "[1, 2]", "so [f(n='a')]", "[fg(n='a')]"],
        [
            ("[f(n=1, is=True)]", 1),
            ('[ g(x=[1, {"a": None}], y=\'b\'), f(n=1, s="(")]', 2),
            ("[g(1)] well", 1),
            ("Hm <|tool_call_start|>[f(n=1)]<|tool_call_end|>", 1),
        ],
        ["[f(‸s", "[f(n=1‸0", "[f(n=1), ‸h", "[g(x=‸)", "<|tool_call_start|>[‸h"],
    ),
    "pythonic*": Texts(
        ["a"],
        [
            ("Hm <|tool_call_start|>[f(n=1), g()]<|tool_call_end|>ok", 2),
            ("<|tool_call_start|>[f(n=1)]<|tool_call_end|>", 1),
        ],
        ["<|tool_call_start|>[f(‸s"],
    ),
}


class Walk:
    """Answers in one form, token by token under its grammar."""

    compiler: GrammarCompiler

    def __init__(self, form: str, *, start: Start | None = None, is_single: bool = False) -> None:
        self.dialect, template = FORMS[form]
        is_special = form.endswith("*")
        self.tokenizer = MarkTokenizer() if is_special else FakeTokenizer()
        specials = frozenset(self.tokenizer.control_texts) if is_special else frozenset()
        name = "mistral" if form == "mistral*" else "think"
        self.tags = None if start is None else REASONING_TAGS[name]
        self.start = start or "closed"
        thought = None if self.tags is None else Thought(self.tags, self.start)
        grammar = text_with_calls(
            self.dialect, TOOLS, Marks(template, specials), is_single=is_single, thought=thought
        )
        self.params = StructuredOutputsParams(
            grammar=grammar, free_text=True, text_ends=TEXT_ENDS.get(self.dialect, ())
        )
        size, end = self.tokenizer.vocab_size, (FakeTokenizer.EOS,)
        compiler = GrammarCompiler(self.tokenizer, size, end)
        self.grammar = compiler.compile(self.params)
        compiler.close()

    def ids(self, text: str) -> list[int]:
        return ids_of(text) if isinstance(self.tokenizer, MarkTokenizer) else list(text.encode())

    def text(self, ids: Sequence[int]) -> str:
        texts = MarkTokenizer.control_texts
        parts = [bytes([i]) if i < 256 else texts[i - 256].encode() for i in ids]
        return b"".join(parts).decode(errors="replace")

    def num_taken(self, text: str) -> int:
        """Return how many tokens of a text are let through; one more where the end is, too."""
        matcher = self.grammar.start((), max_tokens=None)
        ids = [*self.ids(text), FakeTokenizer.EOS]
        for place, token_id in enumerate(ids):
            if not matcher.masks((), 900)[0, token_id]:
                return place
            matcher.advance((token_id,))
        return len(ids)

    def drawn(self, start: str, seed: int, num_tokens: int) -> str:
        """Return a text that begins like this and goes on at random, within its tokens."""
        draw, ids = random.Random(seed), self.ids(start)
        matcher = self.grammar.start(ids, max_tokens=num_tokens)
        while len(ids) < num_tokens and not matcher.is_complete:
            allowed = np.flatnonzero(matcher.masks((), num_tokens - len(ids))[0]).tolist()
            ids.append(draw.choice(allowed))
            if ids[-1] == FakeTokenizer.EOS:
                return self.text(ids[:-1])
            matcher.advance(ids[-1:])
        return self.text(ids)

    def calls(self, text: str) -> list[tuple[str, str]]:
        """Return the names and arguments that a client would get."""
        form = AnswerFormat(
            tags=self.tags,
            start=self.start,
            dialect=TOOL_DIALECTS[self.dialect],
            tools={str(tool["name"]): tool["parameters"] for tool in TOOLS},
        )
        parser = form.parser()
        names, arguments = [], []
        for event in merged([*parser.push(text), *parser.finish()]):
            if isinstance(event, CallStart):
                names.append(event.name)
                arguments.append("")
            if isinstance(event, CallArguments):
                arguments[event.index] += event.text
        return list(zip(names, arguments, strict=True))


def check(calls: Sequence[tuple[str, str]]) -> None:
    """Assert that calls are of the tools, as their schemas say where they are strict."""
    for name, arguments in calls:
        value = json.loads(arguments)
        assert name in ("f", "g")
        assert isinstance(value, dict)
        if name == "f":
            jsonschema.validate(value, SCHEMA)


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    """Return the grammars of all forms without reasoning."""
    return {form: Walk(form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_text_without_a_call_is_free(walks: dict[str, Walk], form: str) -> None:
    for text in TEXTS[form].free:
        assert walks[form].num_taken(text) == len(walks[form].ids(text)) + 1, text
        assert walks[form].calls(text) == [], text


@pytest.mark.parametrize("form", FORMS)
def test_calls_that_satisfy_their_schemas_are_let_through(
    walks: dict[str, Walk], form: str
) -> None:
    for text, num_calls in TEXTS[form].calls:
        assert walks[form].num_taken(text) == len(walks[form].ids(text)) + 1, text
        calls = walks[form].calls(text)
        assert len(calls) == num_calls, text
        check(calls)


@pytest.mark.parametrize("form", FORMS)
def test_call_that_has_begun_cannot_go_wrong(walks: dict[str, Walk], form: str) -> None:
    for text in TEXTS[form].wrong:
        right, wrong = text.split("‸")
        taken = walks[form].num_taken(right + wrong)
        assert taken == len(walks[form].ids(right)), (right, wrong, taken)


@pytest.mark.parametrize("form", FORMS)
def test_calls_drawn_at_random_satisfy_their_schemas(walks: dict[str, Walk], form: str) -> None:
    num_calls = 0
    begun_texts = [text.partition("‸")[0] for text in TEXTS[form].wrong]
    for begun, seed in ((begun, seed) for begun in begun_texts for seed in range(3)):
        calls = walks[form].calls(walks[form].drawn(begun, seed, len(begun.encode()) + 150))
        num_calls += len(calls)
        check(calls)
    assert num_calls > 0


@pytest.mark.parametrize("form", FORMS)
def test_nothing_follows_a_call_that_must_be_alone(form: str) -> None:
    walk = Walk(form, is_single=True)
    text = next(text for text, num_calls in TEXTS[form].calls if num_calls == 1 and "f" in text)
    text = text.removesuffix(" done").removesuffix("ok")
    others = [text for text, num_calls in TEXTS[form].calls if num_calls > 1]

    assert walk.num_taken(text) == len(walk.ids(text)) + 1
    assert walk.num_taken(text + " and") <= len(walk.ids(text))
    assert all(walk.num_taken(other) < len(walk.ids(other)) for other in others)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_the_reasoning_begins_a_call(form: str) -> None:
    opening, closing = ("[THINK]", "[/THINK]") if form == "mistral*" else ("<think>", "</think>")
    right, wrong = TEXTS[form].wrong[-1].split("‸")
    texts = right + wrong if "*" not in form else "f[ARG {"
    for start, head in (("open", ""), ("free", f"\n{opening}"), ("free", opening)):
        walk = Walk(form, start=start)
        thought = f"{head}{texts} or so"

        assert walk.num_taken(thought) == len(walk.ids(thought)) + 1, (start, head)
        after = f"{thought}{closing}\n\n{right}"
        assert walk.num_taken(after + wrong) == len(walk.ids(after)), (start, head)
        text, num_calls = TEXTS[form].calls[0]
        whole = f"{thought}{closing}\n\n{text}"
        assert walk.num_taken(whole) == len(walk.ids(whole)) + 1, (start, head)
        assert len(walk.calls(whole)) == num_calls


@pytest.mark.parametrize("form", ["qwen_xml", "pythonic"])
@pytest.mark.parametrize("more", [{"minProperties": 2}, {"$ref": "#/$defs/x"}, {"required": ["z"]}])
def test_strict_schema_that_a_dialect_cannot_write_is_refused(
    form: str, more: dict[str, Any]
) -> None:
    tool = {**STRICT, "parameters": {**SCHEMA, **more}}

    with pytest.raises(WireException, match=next(iter(more)).replace("$", r"\$")):
        text_with_calls(FORMS[form][0], [tool], Marks(), is_single=False, thought=None)
