"""Grammars over real kinds of tokenizers: bytes in, the model's own tokens out."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.structured.matcher import CompiledGrammar
from pyvt.structured.vocabulary import GrammarVocabulary
from pyvt.testing.fakes import FakeTokenizer
from pyvt.testing.tiny_spm import tiny_spm_metadata
from pyvt.tokenizer import Tokenizer, gguf_tokenizer, hf_tokenizer
from pyvt.weights.gguf import read_gguf


@pytest.fixture(scope="module")
def spm() -> Tokenizer:
    return gguf_tokenizer(tiny_spm_metadata())


def compiled(tokenizer: Tokenizer, vocab_size: int, **settings: Any) -> CompiledGrammar:
    compiler = GrammarCompiler(tokenizer, vocab_size, tokenizer.eos_token_ids)
    return compiler.compile(StructuredOutputsParams(**settings))


def drawn(grammar: CompiledGrammar, tokenizer: Tokenizer, seed: int, max_tokens: int = 60) -> str:
    """Draw allowed tokens; return their text once it has ended."""
    rng = random.Random(seed)
    matcher = grammar.start((), max_tokens=max_tokens)
    tokens: list[int] = []
    for left in range(max_tokens, 0, -1):
        token_id = int(rng.choice(np.flatnonzero(matcher.masks((), left)[0])))
        if token_id in tokenizer.eos_token_ids:
            return b"".join(map(tokenizer.token_bytes, tokens)).decode()
        tokens.append(token_id)
        matcher.advance([token_id])
    raise AssertionError(f"not ended: {tokens}")


@pytest.mark.parametrize("seed", range(5))
def test_sentencepiece_tokens_spell_what_the_grammar_says(spm: Tokenizer, seed: int) -> None:
    size = spm.vocab_size + 5
    choice = compiled(spm, size, choice=["hello the ing", "日本 12", "<tool> a"])
    schema = compiled(spm, size, json={"type": "object", "additionalProperties": {"enum": ["ab"]}})

    assert drawn(choice, spm, seed) in ("hello the ing", "日本 12", "<tool> a")
    assert set(json.loads(drawn(schema, spm, seed)).values()) <= {"ab"}


def test_forced_text_is_let_through_as_the_model_encodes_it(smollm2_path: Path) -> None:
    tokenizer = gguf_tokenizer(read_gguf(smollm2_path).metadata)
    text = "The capital of France"
    grammar = compiled(tokenizer, tokenizer.vocab_size, choice=[text])

    tokens = [int(i) for i in _forced(grammar, len(text))]

    assert tokens == [*tokenizer.encode(text, add_special_tokens=False), tokens[-1]]
    assert tokens[-1] in tokenizer.eos_token_ids


def _forced(grammar: CompiledGrammar, most: int) -> list[int]:
    """Return the first allowed token of each step, up to the end."""
    matcher = grammar.start((), max_tokens=None)
    tokens: list[int] = []
    while not matcher.is_complete and len(tokens) < most:
        tokens.append(int(np.flatnonzero(matcher.masks((), 99)[0])[0]))
        matcher.advance(tokens[-1:])
    return [*tokens, int(np.flatnonzero(matcher.masks((), 99)[0])[0])]


@pytest.mark.slow
def test_qwen3_masks_hold_neither_special_nor_padding_ids(qwen3_tokenizer_dir: Path) -> None:
    text = (qwen3_tokenizer_dir / "tokenizer.json").read_text()
    config = json.loads((qwen3_tokenizer_dir / "tokenizer_config.json").read_text())
    hf = hf_tokenizer(text, config)
    size = 151_936
    grammar = compiled(hf, size, json={"type": "string"}, begin_after="</think>")
    matcher = grammar.start(hf.encode("so</think>", add_special_tokens=False), max_tokens=None)

    opened = matcher.masks((), 99)[0]
    matcher.advance(hf.encode('"', add_special_tokens=False))
    inside = matcher.masks((), 99)[0]

    starts = {hf.token_bytes(int(i)).lstrip(b" \n\r\t")[:1] for i in np.flatnonzero(opened)}
    assert starts == {b"", b'"'}
    assert inside[hf.encode("hello")[0]]
    assert not any(inside[i] for i in hf.special_ids)
    assert not inside[hf.vocab_size :].any()


def test_path_of_bytes_becomes_the_longest_tokens(spm: Tokenizer) -> None:
    vocabulary = GrammarVocabulary.of(spm, spm.vocab_size, spm.eos_token_ids)

    tokens = vocabulary.to_tokens([*"hello the 日".encode(), *vocabulary.text_to_bytes("<|end|>")])

    assert tokens is not None
    pieces = [spm.token_bytes(i).decode() for i in tokens]
    assert pieces == ["hello", " the", " ", "日", "<|end|>"]


def test_model_without_an_end_is_refused() -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, ())

    with pytest.raises(RequestError, match="a token that ends a text") as refused:
        compiler.compile(StructuredOutputsParams(regex="a"))

    assert refused.value.param == "structured_outputs"


def test_grammars_are_kept_by_content_and_the_oldest_goes_first() -> None:
    compiler = GrammarCompiler(FakeTokenizer(), 260, (256,), cache_size=2)
    first, second, third = (StructuredOutputsParams(regex=text) for text in "abc")

    found = compiler.compile(first)
    compiler.compile(second)
    assert compiler.compile(StructuredOutputsParams(regex="a")) is found
    compiler.compile(third)

    assert compiler.compile(first) is found
    assert (compiler.num_hits, compiler.num_compiled) == (2, 3)
