"""Runs the compiler of schemas over a suite of schemas with documents that are valid or not.

The form of the suite is that of JSON-Schema-Test-Suite: groups ``{"description", "schema",
"tests"}``, each test ``{"description", "data", "valid"}``. A document counts as accepted when the
grammar lets one of the ways to write it through, byte by byte, and the text may end behind it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyvt.errors import RequestError
from pyvt.messages import Grammar
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.testing.fakes import FakeTokenizer

_ROOM = 1 << 20  # tokens that a document may take


@dataclass(slots=True)
class SuiteResult:
    """What became of the schemas and documents of a suite.

    Attributes:
        num_schemas: groups of the suite.
        refusals: description of each refused schema → the text of its refusal.
        num_accepted: valid documents that can be written.
        num_lost: valid documents that cannot: other orders of properties, say.
        num_rejected: invalid documents that cannot be written.
        unsound: invalid documents that can, of a schema without a warning.
        num_warned: invalid documents that can, of a schema that came with warnings.
    """

    num_schemas: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    num_accepted: int = 0
    num_lost: int = 0
    num_rejected: int = 0
    unsound: list[str] = field(default_factory=list)
    num_warned: int = 0


def run_suite(groups: Iterable[Mapping[str, Any]], *, is_strict: bool = True) -> SuiteResult:
    """Return what the compiler makes of each schema, ``is_strict`` or not, and its documents."""
    tokenizer = FakeTokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    result = SuiteResult()
    for group in groups:
        result.num_schemas += 1
        params = StructuredOutputsParams(json=json.dumps(group["schema"]), strict=is_strict)
        try:
            grammar = compiler.compile(params)
        except RequestError as error:
            result.refusals[group["description"]] = str(error)
            continue
        for test in group["tests"]:
            is_taken = any(takes(grammar, text) for text in _texts(test["data"]))
            if test["valid"]:
                result.num_accepted += is_taken
                result.num_lost += not is_taken
            elif not is_taken:
                result.num_rejected += 1
            elif grammar.warnings:
                result.num_warned += 1
            else:
                result.unsound.append(f"{group['description']}: {test['description']}")
    compiler.close()
    return result


def takes(grammar: Grammar, text: bytes) -> bool:
    """Return whether a grammar over ``FakeTokenizer`` lets a whole text through."""
    matcher = grammar.start((), max_tokens=None)
    for byte in text:
        if not matcher.masks((), _ROOM)[0, byte]:
            return False
        matcher.advance([byte])
    return bool(matcher.masks((), _ROOM)[0, FakeTokenizer.EOS])


def _texts(data: Any) -> Iterator[bytes]:
    """Yield ways to write a document: with and without spaces, escapes or characters."""
    for separators in ((",", ":"), (", ", ": ")):
        for is_ascii in (False, True):
            text = json.dumps(data, separators=separators, ensure_ascii=is_ascii)
            yield text.encode("utf-8", "replace")
