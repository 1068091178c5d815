"""Compiles the grammars of requests beside the step loop, with a time limit, and keeps them."""

import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import CancelledError
from threading import Lock
from typing import Any

import llguidance

from pyvt.errors import RequestError
from pyvt.log import get_logger
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured.blame import plain_reason, refused_keyword
from pyvt.structured.closing import MAX_BYTES, MAX_CPU_S, ShortestText
from pyvt.structured.compile_threads import CompileThreads, Job
from pyvt.structured.grammar import (
    GrammarText,
    grammar_text,
    refused,
    schema_options,
)
from pyvt.structured.matcher import CompiledGrammar
from pyvt.structured.vocabulary import GrammarVocabulary
from pyvt.tally import SECONDS, Tally
from pyvt.tokenizer.base import Tokenizer

log = get_logger(__name__)

NUM_THREADS = 2
# Rules that may go on at one place of a text: one for each choice, four for each property that may
# come next. Masks take longer with each.
MAX_ITEMS = 8000
# What a schema that is not strict may give up, in this order.
_LESS_STRICT: tuple[dict[str, Any], ...] = ({"coerce_one_of": True}, {"lenient": True})


class GrammarCompiler:
    """Compiled grammars of one model, by content; safe for several threads.

    Args:
        tokenizer: the model's.
        vocab_size: V, ids of the model's logits.
        eos_token_ids: ids that end a text.
        timeout_s: seconds of CPU that one grammar may take.
        cache_size: grammars that are kept.

    Attributes:
        num_hits, num_compiled, num_timeouts: grammars that were there, that were compiled, and
            that took too long.
        times: seconds of each that was compiled, or refused.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        *,
        timeout_s: float = 10.0,
        cache_size: int = 256,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._timeout_s = timeout_s
        self._cache_size = cache_size
        self._cache: OrderedDict[StructuredOutputsParams, Job] = OrderedDict()
        self._lock = Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._threads = CompileThreads(NUM_THREADS, "pyvt-grammar")
        weakref.finalize(self, self._threads.close)
        self.num_hits = 0
        self.num_compiled = 0
        self.num_timeouts = 0
        self.times = Tally(SECONDS)

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """Return the compiled grammar; waits for it, but never keeps the step loop.

        Raises:
            RequestError: it cannot be honoured, no text satisfies it, or it takes too long.
        """
        vocabulary = self._get_vocabulary()
        key = params.without_request_settings()
        with self._lock:
            job = self._cache.get(key)
            if job is None or job.result.cancelled():
                job = self._threads.submit(_timed, self.times, key, vocabulary)
                self._cache[key] = job
                self.num_compiled += 1
                while len(self._cache) > self._cache_size:
                    self._cache.popitem(last=False)
            else:
                self.num_hits += 1
                self._cache.move_to_end(key)
        try:
            grammar: CompiledGrammar = job.wait(self._timeout_s)
            return grammar
        except (TimeoutError, CancelledError) as error:
            self._threads.give_up(job)
            with self._lock:
                self.num_timeouts += 1
            raise refused(f"a grammar that compiles in {self._timeout_s:g} s", "more") from error

    def close(self) -> None:
        """End the threads; grammars that were handed out stay usable."""
        self._threads.close()

    def _get_vocabulary(self) -> GrammarVocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary.of(
                    self._tokenizer, self._vocab_size, self._eos_token_ids
                )
            return self._vocabulary


def _timed(
    times: Tally, params: StructuredOutputsParams, vocabulary: GrammarVocabulary
) -> CompiledGrammar:
    start_s = time.perf_counter()
    try:
        return _compile(params, vocabulary)
    finally:
        times.add(time.perf_counter() - start_s)


def _compile(params: StructuredOutputsParams, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    try:
        grammar = grammar_text(params, vocabulary.special_ids)
    except RecursionError as error:
        raise refused("a grammar that is not nested so deeply", "more levels") from error
    matcher = _matcher(vocabulary.tokens, grammar)
    warnings: tuple[str, ...] = ()
    if matcher.is_error() and grammar.schema is not None and not params.strict:
        for options in _LESS_STRICT:
            grammar = grammar_text(params, vocabulary.special_ids, options)
            matcher = _matcher(vocabulary.tokens, grammar)
            if not matcher.is_error():
                break
    if grammar.schema is None or not params.strict:
        # Schemas inside of a grammar tell themselves whether they are strict.
        warnings = tuple(matcher.get_grammar_warnings())
    if matcher.is_error():
        raise _refusal(params, grammar, matcher.get_error())
    on_bytes = _matcher(vocabulary.by_byte, grammar)
    ends = (*((params.begin_after,) if params.begin_after else ()), *params.text_ends)
    marks = tuple(tuple(vocabulary.text_to_bytes(end)) for end in ends)
    search = ShortestText(on_bytes, vocabulary, marks, max_bytes=MAX_BYTES, max_cpu_s=MAX_CPU_S)
    found = search.find()
    if search.is_slow:
        raise refused("a grammar that tells soon what may come next", "one of too many ways")
    if found is None and search.error:
        raise refused("a grammar with fewer choices in one place", plain_reason(search.error))
    _check_start(matcher, found)
    path = vocabulary.to_tokens(search.unfinished if found is None else found)
    detour = vocabulary.to_tokens(search.detour())
    return CompiledGrammar(
        vocabulary=vocabulary,
        tokens=matcher,
        by_byte=on_bytes,
        shortest=0 if path is None else len(path),
        detour=len(detour or ()),
        step_s=search.step_s,
        warnings=warnings,
        marks=marks,
        is_free_text=grammar.is_free_text,
    )


def _matcher(tokenizer: llguidance.LLTokenizer, grammar: GrammarText) -> llguidance.LLMatcher:
    limits = llguidance.LLParserLimits(verbose_errors=False, max_items_in_row=MAX_ITEMS)
    return llguidance.LLMatcher(tokenizer, grammar.text, log_level=0, limits=limits)


def _check_start(matcher: llguidance.LLMatcher, found: list[int] | None) -> None:
    """Refuse a grammar without a text; the first mask also warms the lexer."""
    probe = matcher.deep_copy()
    has_start = any(probe.compute_bitmask()) and not probe.is_error()
    if not has_start and not (found == [] and matcher.is_accepting()):
        raise refused("a grammar that some text satisfies", "one without any")


def _refusal(params: StructuredOutputsParams, grammar: GrammarText, reason: str) -> RequestError:
    """Return the error of a grammar that llguidance does not take, with the keyword to blame."""
    reason = plain_reason(reason)
    if params.regex is not None:
        expected = "a regular expression that can be honoured"
        return refused(expected, f"{params.regex!r}: {reason}", at="regex")
    if grammar.schema is None:
        kind = next((kind for kind in ("grammar", "structural_tag") if getattr(params, kind)), "")
        return refused("a grammar that can be honoured", reason, at=kind)

    # One that is not strict has given up what it could.
    given_up = {} if params.strict else _LESS_STRICT[-1]
    pointer = refused_keyword(grammar.schema, schema_options(params, given_up))
    return refused(f"a schema that can be honoured, {pointer} cannot", reason, at="json")
