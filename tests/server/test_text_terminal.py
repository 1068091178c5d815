"""Terminals of a string's schema against the validator of the schema itself."""

import json
from typing import Any

import jsonschema
import llguidance
import pytest

from pyvt.server.text_terminal import text_terminal
from pyvt.structured.vocabulary import GrammarVocabulary
from pyvt.testing.fakes import FakeTokenizer

TEXTS = ("", "a", "ab", "abc", "xab", "é🙂", "a\nb", "B$", "a)b", "ab/12")
SCHEMAS: dict[str, dict[str, Any]] = {
    "free": {"type": "string"},
    "least": {"type": "string", "minLength": 2},
    "most": {"type": "string", "maxLength": 2},
    "both": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "b"},
    "inside": {"type": "string", "pattern": "b"},
    "begins": {"type": "string", "pattern": "^a"},
    "ends": {"type": "string", "pattern": "b$"},
    "all": {"type": "string", "pattern": "^[a-c]+$"},
    "dollar": {"type": "string", "pattern": "\\\\$"},
    "slash": {"type": "string", "pattern": "/[0-9]"},
}


def _is_taken(terminal: str, text: str) -> bool:
    tokenizer = FakeTokenizer()
    words = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size, (tokenizer.EOS,))
    grammar = json.dumps({"grammars": [{"lark_grammar": f"start: T\nT: {terminal}"}]})
    matcher = llguidance.LLMatcher(words.tokens, grammar, log_level=0)
    ids = list(text.encode())
    taken = bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
    assert not matcher.is_error()
    return taken


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_terminal_takes_what_its_schema_takes(name: str) -> None:
    schema = SCHEMAS[name]
    terminal, lost = text_terminal(schema)
    assert lost == []

    taken = [text for text in TEXTS if _is_taken(terminal, text)]

    assert taken == [
        text for text in TEXTS if jsonschema.Draft202012Validator(schema).is_valid(text)
    ]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("format", "date"), ("pattern", "(?=a)b"), ("pattern", "a)|(b"), ("minLength", "1")],
)
def test_what_a_terminal_cannot_say_is_told(keyword: str, value: Any) -> None:
    assert text_terminal({"type": "string", keyword: value}) == ("/(.|\\n)*/", [keyword])


def test_words_keep_no_other_keyword() -> None:
    assert text_terminal({"enum": ["a"], "maxLength": 0}, is_chosen=True) == ("", ["maxLength"])
