"""Grammars over the byte tokenizer, and texts drawn from them without a model."""

import random
from typing import Any

import numpy as np

from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.structured.matcher import CompiledGrammar
from pyvt.testing.fakes import FakeTokenizer

EOS = FakeTokenizer.EOS
VOCAB_SIZE = 264  # four ids without a text
COMPILER = GrammarCompiler(FakeTokenizer(), VOCAB_SIZE, FakeTokenizer.eos_token_ids, timeout_s=60)


def compiled(**settings: Any) -> CompiledGrammar:
    """Return a grammar of ``StructuredOutputsParams``."""
    return COMPILER.compile(StructuredOutputsParams(**settings))


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the text may be generated and may end there."""
    matcher = grammar.start((), max_tokens=None)
    for token_id in (*text.encode(), EOS):
        if not matcher.masks((), 10_000)[0, token_id]:
            return False
        matcher.advance([token_id])
    return True


def drawn(
    grammar: CompiledGrammar, max_tokens: int, seed: int, *, is_closing: bool = True
) -> tuple[bytes, bool]:
    """Draw allowed tokens at random; return the text and whether it ended before ``max_tokens``."""
    rng = random.Random(seed)
    matcher = grammar.start((), max_tokens=max_tokens if is_closing else None)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        allowed = np.flatnonzero(matcher.masks((), max_tokens - len(tokens))[0])
        assert matcher.error is None, matcher.error
        token_id = int(rng.choice(allowed))
        if token_id == EOS:
            return bytes(tokens), True
        tokens.append(token_id)
        matcher.advance([token_id])
    return bytes(tokens), False
