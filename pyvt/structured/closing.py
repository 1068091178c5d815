"""The shortest way to a complete text, searched within a bound.

The grammar is walked over single bytes on copies of a matcher. From a state the search goes on
greedily: what is forced, then brackets and quotes that close, then one byte of each kind, spaces
last; then it goes back to each place where it had a choice and tries the others, as long as that
gives a shorter path. Free text that only a mark ends is ended by the mark. What it finds is short,
not proven shortest: states of the library cannot be compared.
"""

import time
from collections.abc import Sequence

import llguidance
import numpy as np

from pyvt.structured.vocabulary import NUM_BYTES, GrammarVocabulary, allowed_ids

# Bytes of the first way, and bytes looked at for a shorter one, some 10 µs each: at admission.
MAX_BYTES = 8192
MAX_STEPS = 4000
# Between steps, for the first way too.
MAX_STEPS_ON_THE_WAY = 1000
# Seconds of the thread that searches; only a grammar with very many ways at each byte needs more.
MAX_CPU_S = 8.0
MAX_CPU_ON_THE_WAY_S = 0.1
_MAX_OPTIONS = 16
# Bytes that are gone again, without a look at what may follow, for the price of a look.
_BYTES_A_STEP = 32
_CLOSERS = b'}])"'
# Behind ``<``, where another tag may begin.
_TAG_CLOSER = b"/"
# More choices than this are the inside of a text, where a quote ends it and brackets do not.
_MIN_TEXT = 64
_KINDS = (b"0123456789", bytes(range(97, 123)), bytes(range(65, 91)))


class ShortestText:
    """One search; ``find`` returns a path in the vocabulary of bytes, None where it found none.

    ``marks`` are paths of which each ends some free text.

    Attributes:
        unfinished: where the search came to its bound before an end: how far it had come.
        is_slow: whether it ended for lack of time.
        error: why the grammar could not go on somewhere on the way, empty where it could.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        vocabulary: GrammarVocabulary,
        marks: Sequence[Sequence[int]] = (),
        *,
        max_steps: int = MAX_STEPS,
        max_bytes: int | None = None,
        max_cpu_s: float = MAX_CPU_ON_THE_WAY_S,
    ) -> None:
        """``max_steps`` bounds all ways; with ``max_bytes`` the first has that bound of its own."""
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._limit = max_bytes or max_steps
        self._max_cpu_s = max_cpu_s
        self._start_s = time.thread_time()
        self._end_s = self._start_s + max_cpu_s
        self.is_slow = False
        self.error = ""
        self.unfinished: list[int] = []
        self._root = matcher
        self._marks = [list(mark) for mark in marks]
        self._vocabulary = vocabulary
        self._num_steps = 0
        self._known: dict[bytes, list[int]] = {}
        self._found: tuple[list[int], list[Sequence[int]]] = [], []

    def first(self) -> list[int] | None:
        """Return the path that the greedy walk finds, for who needs any."""
        found = self._greedy([], self._limit)
        return None if found is None else found[0]

    def find(self) -> list[int] | None:
        """Return the path; empty where the text may end at once."""
        found = self._greedy([], self._limit)
        if found is None:
            return None
        best, choices = found
        if self._max_bytes is not None:
            self._limit = self._num_steps + self._max_steps
        place = 0
        while place < len(best) and not self._is_over():
            better = None
            for option in choices[place][1:]:
                better = self._greedy([*best[:place], option], len(best) - 1)
                if better is not None:
                    break
            if better is None:
                place += 1
                continue
            path, tail = better
            best, choices = path, [*choices[: place + 1], *tail[place + 1 :]]
        self._found = best, choices
        return best

    def detour(self) -> list[int]:
        """Return the longest way to an end behind another choice on the path that ``find`` found.

        One step may lengthen the way to the end by so much. It is looked for with as many steps
        again; empty where there is no choice.
        """
        self._limit = self._num_steps + self._max_steps
        self._end_s = time.thread_time() + self._max_cpu_s
        best, choices = self._found
        longest: list[int] = []
        for place, options in enumerate(choices):
            for option in options[1:]:
                other = self._greedy([*best[:place], option], self._max_steps)
                if other is not None and len(other[0]) > len(longest):
                    longest = other[0]
        return longest

    @property
    def step_s(self) -> float:
        """CPU time of a step so far."""
        return (time.thread_time() - self._start_s) / max(1, self._num_steps)

    def _is_over(self) -> bool:
        """Return whether the steps or the time are used up."""
        if time.thread_time() > self._end_s:
            self.is_slow = True
        return self.is_slow or self._num_steps >= self._limit

    def _greedy(
        self, start: Sequence[int], limit: int
    ) -> tuple[list[int], list[Sequence[int]]] | None:
        """Go on from ``start``; return the path and the choices at each of its places."""
        matcher = self._root.deep_copy()
        if self._is_over() or not matcher.consume_tokens(list(start)):
            return None
        self._num_steps += len(start) // _BYTES_A_STEP
        path = list(start)
        choices: list[Sequence[int]] = [()] * len(start)
        before, chosen = b"", -1
        while not matcher.is_accepting():
            if len(path) >= limit or self._is_over():
                self.unfinished = max(self.unfinished, path, key=len)
                return None
            mask = matcher.compute_bitmask()
            options = self._options(mask, chosen if mask == before else -1)
            if not options or matcher.is_error():
                self.error = matcher.get_error() or self.error
                return None
            taken: Sequence[int] = options[:1]
            if len(options) > 1:
                before, chosen = mask, options[0]
                taken = self._marked(matcher, mask) or taken
            if len(path) + len(taken) > limit:
                self.unfinished = max(self.unfinished, [*path, *taken][:limit], key=len)
                return None
            if not matcher.consume_tokens(list(taken)):
                self.error = matcher.get_error() or self.error
                return None
            self._num_steps += len(taken)
            path += taken
            choices += [options, *[()] * (len(taken) - 1)]
        return (path, choices) if len(path) <= limit else None

    def _marked(self, matcher: llguidance.LLMatcher, mask: bytes) -> list[int]:
        """Return the mark that ends a free text, nothing elsewhere."""
        if len(self._known[mask]) < _MAX_OPTIONS:
            return []
        for mark in self._marks:
            ahead = matcher.deep_copy()
            if ahead.consume_tokens(mark) and ahead.compute_bitmask() != mask:
                return mark
        return []

    def _options(self, mask: bytes, chosen: int) -> list[int]:
        """Return the bytes to try, best first; one that led to the same mask before comes last."""
        options = self._known.get(mask)
        if options is None:
            options = self._known[mask] = self._ordered(mask)
        if chosen in options and len(options) > 1:
            options = [*(byte for byte in options if byte != chosen), chosen]
        return options

    def _ordered(self, mask: bytes) -> list[int]:
        ids = np.flatnonzero(allowed_ids(mask, self._vocabulary.by_byte.vocab_size)).tolist()
        allowed = set(ids) - self._vocabulary.byte_end_ids
        closers = _CLOSERS + _TAG_CLOSER if len(allowed) < _MIN_TEXT else _CLOSERS[::-1]
        options = [byte for byte in closers if byte in allowed]
        rest = allowed - set(options)
        kinds = (next((byte for byte in kind if byte in rest), None) for kind in _KINDS)
        firsts = [byte for byte in kinds if byte is not None]
        if len(rest) <= _MAX_OPTIONS:
            return options + firsts + sorted(rest - set(firsts), key=_is_space)
        letters = {byte for kind in _KINDS for byte in kind}
        signs = sorted(b for b in rest - letters if 32 < b < 127 or b >= NUM_BYTES)
        return options + (firsts + signs or sorted(rest, key=_is_space))[:_MAX_OPTIONS]


def _is_space(byte: int) -> tuple[bool, int]:
    return byte <= 32, byte
