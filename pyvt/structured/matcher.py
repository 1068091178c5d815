"""A compiled grammar and the state of one request in it.

``close_within_budget``: when the tokens that are left reach the reserve, only the shortest closing
path is let through. The reserve is the length of that path, one token for the end, and a quarter of
what the request has to spare. A state with few choices is treated better, and sooner, where one
token could lengthen the path by more (by the grammar's shortest text or the longest way behind a
choice on it, at least ``MIN_ROOM``): its tokens are tried, and those are let through behind which
the text still closes in time.

Where the grammar forces a text, the model's own encoding of it is what is let through, so that the
model sees what it was trained on. llguidance could do this too, but looks at the whole forced text
for each token, and some are endless (``/a+/ "a"``); here a few tokens are looked ahead.

The path is searched when the tokens since the last search could have made it long enough, so a long
text costs a few searches. A text that is complete is not cut short for what a further token could
begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np

from pyvt.structured.closing import MAX_STEPS_ON_THE_WAY, ShortestText
from pyvt.structured.vocabulary import GrammarVocabulary, allowed_ids

Array = np.ndarray[Any, Any]

MIN_ROOM = 8
# Choices of a state that are tried one by one, and the steps of each search.
MAX_TRIED = 32
MAX_STEPS_OF_A_TRY = 200
# Ways to begin a forced text that are looked at, and how often the longest one is gone ahead.
_MAX_SPELLINGS = 64
_MAX_AHEAD = 3
# Of a grammar whose steps cost more than this, a search on the way takes few and tries none.
_HEAVY_STEP_S = 0.002
_HEAVY_STEPS = 24
# Tokens until the next try where a search found no path.
_RETRY = 16


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGrammar:
    """What all requests with one grammar share; immutable, so any thread may start from it.

    Attributes:
        vocabulary: whose tokens the masks are of.
        tokens, by_byte: matchers at the start of a text; never advanced.
        shortest: tokens of the shortest text that was found, or as far as the search came.
        detour: tokens of the longest way to an end behind a choice on that text.
        warnings: keywords that a schema that is not strict had and that are not honoured.
        step_s: CPU time of a step of a search, measured when it was compiled.
        marks: what ends free texts, in the vocabulary of bytes.
        is_free_text: whether the grammar is about parts of a text that may end anywhere else.
    """

    vocabulary: GrammarVocabulary
    tokens: llguidance.LLMatcher
    by_byte: llguidance.LLMatcher
    shortest: int
    detour: int = 0
    step_s: float = 0.0
    warnings: tuple[str, ...] = ()
    marks: tuple[tuple[int, ...], ...] = ()
    is_free_text: bool = False

    @property
    def is_heavy(self) -> bool:
        """Whether full searches would keep the requests beside this one waiting."""
        return self.step_s > _HEAVY_STEP_S

    def start(self, token_ids: Sequence[int], *, max_tokens: int | None) -> "GrammarMatcher":
        """Return the state of a request that has generated ``token_ids``.

        With ``max_tokens`` the text is closed before so many tokens. The state is the one that a
        request has which took these tokens one by one.
        """
        return GrammarMatcher(self, token_ids, max_tokens=max_tokens)


class GrammarMatcher:
    """The state of one request in its grammar; belongs to the worker's row.

    Attributes:
        error: why the grammar cannot go on, None while it can.
    """

    def __init__(
        self, grammar: CompiledGrammar, token_ids: Sequence[int], *, max_tokens: int | None
    ) -> None:
        self.error: str | None = None
        self._grammar = grammar
        self._matcher = grammar.tokens.deep_copy()
        self._bytes = grammar.by_byte.deep_copy()
        self._is_closing = max_tokens is not None
        least = max(MIN_ROOM, grammar.shortest)
        self._room = max(least, grammar.detour)
        spare = (max_tokens or 0) - grammar.shortest
        self._least_room = max(1, min(least, spare // 4))
        self._near: list[int] | None = None
        self._must_close = False
        self._num_until_search = 0
        self._path: list[int] | None = None
        for i, token_id in enumerate(token_ids):
            if max_tokens is not None:
                self._search(max_tokens - i)
                if self._near is not None:
                    self.masks((), max_tokens - i)
            self.advance((token_id,))

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        if self.error is not None:
            return False
        if self._path == [] or self._matcher.is_stopped():
            return True
        if not self._matcher.is_accepting():
            return False
        allowed = allowed_ids(self._matcher.compute_bitmask(), self._grammar.vocabulary.size)
        ends = self._grammar.vocabulary.end_ids
        return not set(np.flatnonzero(allowed)[: len(ends) + 1].tolist()) - set(ends)

    def masks(self, drafts: Sequence[int], num_left: int) -> Array:
        """Return the tokens allowed now and behind each draft, ``[1 + len(drafts), V]`` bool.

        Args:
            drafts: tokens that ``filter_drafts`` let through; the state does not change.
            num_left: tokens that the request may still generate.

        Nothing is allowed where the grammar cannot go on: a failed matcher itself allows the end.
        """
        size = self._grammar.vocabulary.size
        allowed = np.zeros((1 + len(drafts), size), np.bool_)
        if self.error is not None:
            return allowed
        self._search(num_left)
        if self._path is not None:
            only = self._path[:1] or list(self._grammar.vocabulary.end_ids)
            allowed[0, only] = True
            return allowed
        for i in range(1 + len(drafts)):
            mask = self._matcher.compute_bitmask()
            self._check()
            if self.error is not None:
                return allowed
            allowed[i] = allowed_ids(mask, size)
            self._keep_own_spelling(allowed[i])
            if i < len(drafts):
                self._matcher.consume_token(drafts[i])
        if drafts:
            self._matcher.rollback(len(drafts))
        if self._near is not None and self.error is None:
            self._close(allowed[0], self._near, num_left)
        return allowed

    def filter_drafts(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return the drafts up to the first that the grammar does not allow, or that ends it."""
        if self.error is not None or self._path is not None:
            return ()
        if self._is_closing:
            drafts = drafts[: max(0, self._num_until_search - 1)]
        ends = self._grammar.vocabulary.end_ids
        num_before_end = next((i for i, t in enumerate(drafts) if t in ends), len(drafts))
        kept = list(drafts[:num_before_end])
        return tuple(kept[: self._matcher.validate_tokens(kept)]) if kept else ()

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take tokens that were generated."""
        vocabulary = self._grammar.vocabulary
        for token_id in token_ids:
            if self.error is not None or token_id in vocabulary.end_ids:
                return
            self._matcher.consume_token(token_id)
            self._check()
            if self._is_closing:
                self._bytes.consume_tokens(vocabulary.to_bytes(token_id))
                self._num_until_search -= 1
            if self._path:
                self._path.pop(0)

    def _search(self, num_left: int) -> None:
        """Look for the closing path where it is time, and note how near its beginning is."""
        if not self._is_closing or self._path is not None or self._num_until_search > 0:
            return
        grammar = self._grammar
        most = _HEAVY_STEPS if grammar.is_heavy else MAX_STEPS_ON_THE_WAY
        search = ShortestText(self._bytes, grammar.vocabulary, grammar.marks, max_steps=most)
        found = search.find()
        path = None if found is None else grammar.vocabulary.to_tokens(found)
        if found is None or path is None:
            self._near = None
            self._num_until_search = _RETRY
            return
        num_needed = len(path) + 1
        if grammar.is_free_text:
            # No way from the start of the text told how long a part of it is.
            self._room = max(self._room, num_needed)
        # A free text may be cut inside of a character too: what is left of it is no tag to close.
        is_over = grammar.is_free_text and all(0x80 <= byte < 0xC0 for byte in found)
        is_near = num_left <= num_needed + self._room and not is_over
        self._near = path if is_near else None
        self._must_close = num_left <= num_needed + (self._least_room if path else 1)
        num_spare = num_left - num_needed - self._room
        self._num_until_search = max(1, num_spare // (self._room + 1))

    def _close(self, allowed: Array, path: list[int], num_left: int) -> None:
        """Leave out the tokens behind which no text closes in time; where many, take the path."""
        vocabulary = self._grammar.vocabulary
        token_ids = np.flatnonzero(allowed).tolist()
        if self._grammar.is_heavy or len(token_ids) > MAX_TRIED:
            if self._must_close and self._matcher.validate_tokens(path) == len(path):
                self._path = list(path)
                allowed[:] = False
                allowed[path[:1] or list(vocabulary.end_ids)] = True
            return
        for token_id in token_ids:
            if token_id not in vocabulary.end_ids:
                allowed[token_id] = self._closes_behind(token_id, num_left - 1)
        if not allowed.any():
            allowed[path[:1] or list(vocabulary.end_ids)] = True

    def _closes_behind(self, token_id: int, num_left: int) -> bool:
        """Return whether a text closes, end included, in the tokens left behind one more token."""
        vocabulary = self._grammar.vocabulary
        ahead = self._bytes.deep_copy()
        ahead.consume_tokens(vocabulary.to_bytes(token_id))
        search = ShortestText(ahead, vocabulary, self._grammar.marks, max_steps=MAX_STEPS_OF_A_TRY)
        for found in (search.first, search.find):
            path = found()
            tokens = None if path is None else vocabulary.to_tokens(path)
            if tokens is not None and len(tokens) < num_left:
                return True
        return False

    def _keep_own_spelling(self, allowed: Array) -> None:
        """Leave only the model's own token where all that is allowed begins one forced text."""
        text, longest = self._forced(allowed)
        if not text:
            return
        vocabulary = self._grammar.vocabulary
        ahead = self._matcher.deep_copy()
        for _ in range(_MAX_AHEAD):
            ahead.consume_token(longest)
            behind = allowed_ids(ahead.compute_bitmask(), len(allowed))
            more, longest = self._forced(behind, least=1)
            if not more:
                break
            text += more
        # The last token might go on into what follows, unless that is no text.
        is_whole = not more and not any(map(vocabulary.text_of, np.flatnonzero(behind).tolist()))
        own = vocabulary.spelled(text)
        if len(own) > (0 if is_whole else 1) and allowed[own[0]]:
            allowed[:] = False
            allowed[own[0]] = True

    def _forced(self, allowed: Array, *, least: int = 2) -> tuple[bytes, int]:
        """Return the longest allowed token where the others are its beginnings, else no text."""
        if not least <= np.count_nonzero(allowed) <= _MAX_SPELLINGS:
            return b"", -1
        texts = {self._grammar.vocabulary.text_of(i): i for i in np.flatnonzero(allowed).tolist()}
        longest = max(texts, key=len)
        is_forced = b"" not in texts and all(map(longest.startswith, texts))
        return (longest, texts[longest]) if is_forced else (b"", -1)

    def _check(self) -> None:
        if self._matcher.is_error():
            text = self._matcher.get_error().partition("\n")[0]
            self.error = f"[structured] grammar: expected a text that goes on, got {text!r}"
