"""The shortest way to a complete text, searched within a bound.

The grammar is walked over single bytes on copies of a matcher. From a state the search goes on
greedily: what is forced, then brackets and quotes that close, then one byte of each kind, spaces
last; then it goes back to each place where it had a choice and tries the others, as long as that
gives a shorter path. Free text that only a mark ends is ended by the mark. What it finds is short,
not proven shortest: states of the library cannot be compared.
"""

from collections.abc import Sequence

import llguidance
import numpy as np

from pyvt.structured.vocabulary import NUM_BYTES, GrammarVocabulary, allowed_ids

# Bytes looked at, some 10 µs each: at admission, and between steps.
MAX_STEPS = 4000
MAX_STEPS_ON_THE_WAY = 1000
MAX_BYTES = 4000
_MAX_OPTIONS = 16
_CLOSERS = b'}])"'
# More choices than this are the inside of a text, where a quote ends it and brackets do not.
_MIN_TEXT = 64
_KINDS = (b"0123456789", bytes(range(97, 123)), bytes(range(65, 91)))


class ShortestText:
    """One search; ``find`` returns a path in the vocabulary of bytes, None where it found none.

    ``marks`` are paths of which each ends some free text.

    Attributes:
        unfinished: where the search came to its bound before an end: how far it had come.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        vocabulary: GrammarVocabulary,
        marks: Sequence[Sequence[int]] = (),
        *,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._max_steps = max_steps
        self.unfinished: list[int] = []
        self._root = matcher
        self._marks = [list(mark) for mark in marks]
        self._vocabulary = vocabulary
        self._num_steps = 0
        self._known: dict[bytes, list[int]] = {}
        self._found: tuple[list[int], list[Sequence[int]]] = [], []

    def first(self) -> list[int] | None:
        """Return the path that the greedy walk finds, for who needs any."""
        found = self._greedy([], MAX_BYTES)
        return None if found is None else found[0]

    def find(self) -> list[int] | None:
        """Return the path; empty where the text may end at once."""
        found = self._greedy([], MAX_BYTES)
        if found is None:
            return None
        best, choices = found
        place = 0
        while place < len(best) and self._num_steps < self._max_steps:
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
        self._num_steps = 0
        best, choices = self._found
        longest: list[int] = []
        for place, options in enumerate(choices):
            for option in options[1:]:
                other = self._greedy([*best[:place], option], MAX_BYTES)
                if other is not None and len(other[0]) > len(longest):
                    longest = other[0]
        return longest

    def _greedy(
        self, start: Sequence[int], limit: int
    ) -> tuple[list[int], list[Sequence[int]]] | None:
        """Go on from ``start``; return the path and the choices at each of its places."""
        matcher = self._root.deep_copy()
        if not matcher.consume_tokens(list(start)):
            return None
        path = list(start)
        choices: list[Sequence[int]] = [()] * len(start)
        before, chosen = b"", -1
        while not matcher.is_accepting():
            if len(path) >= limit or self._num_steps >= self._max_steps:
                self.unfinished = max(self.unfinished, path, key=len)
                return None
            forced: Sequence[int] = matcher.compute_ff_bytes()
            options: Sequence[int] = ()
            if not forced:
                mask = matcher.compute_bitmask()
                options = self._options(mask, chosen if mask == before else -1)
                if not options or matcher.is_error():
                    return None
                before, chosen = mask, options[0]
                forced = self._marked(matcher, mask) or options[:1]
            if len(path) + len(forced) > limit:
                self.unfinished = max(self.unfinished, [*path, *forced][:limit], key=len)
                return None
            if not matcher.consume_tokens(list(forced)):
                return None
            self._num_steps += len(forced)
            path += forced
            choices += [options, *[()] * (len(forced) - 1)]
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
        closers = _CLOSERS if len(allowed) < _MIN_TEXT else _CLOSERS[::-1]
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
