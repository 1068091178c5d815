"""The model's vocabulary as llguidance wants it, and a vocabulary of single bytes beside it.

Grammars speak of bytes. Masks are made over the model's tokens; the search for the shortest end of
a text walks the same grammar byte by byte, where a step has at most a few hundred choices whatever
the model's vocabulary is.

Special tokens are no text: a grammar lets one through only where it names it. Added tokens that are
not special, such as the tags of tool calls, are text. Ids without text are never let through.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import llguidance
import numpy as np

from pyvt.errors import RequestError
from pyvt.tokenizer.base import Tokenizer

NUM_BYTES = 256
_LONGEST = 64


@dataclass(slots=True)
class _Words:
    """The words of one vocabulary, with the attributes that ``TokenizerWrapper`` reads.

    A call gives the model's own tokens for a text. An encoding that does not spell the text, such
    as one with a space put in front, or that takes it for special tokens, is replaced by the
    longest words that fit.
    """

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    encode: Callable[[str], list[int]] | None = None
    bos_token_id: int | None = None
    _specials: frozenset[int] = frozenset()
    _id_of: dict[bytes, int] = field(default_factory=dict)
    _longest: int = 1

    def __post_init__(self) -> None:
        self._specials = frozenset(self.special_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the ids of a text; bytes that no word spells are left out."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        if self.encode is not None:
            ids = self.encode(data.decode("utf-8", "replace"))
            is_text = self._specials.isdisjoint(ids)
            if is_text and b"".join(self.tokens[i] for i in ids) == data:
                return ids
        return self.longest(data)

    def longest(self, data: bytes) -> list[int]:
        """Return the ids of the longest words that fit, from the left."""
        if not self._id_of:
            texts = ((i, w) for i, w in enumerate(self.tokens) if w and i not in self._specials)
            self._id_of |= {word: i for i, word in texts}
            self._longest = min(_LONGEST, max(map(len, self._id_of), default=1))
        ids: list[int] = []
        place = 0
        while place < len(data):
            ends = range(min(len(data), place + self._longest), place, -1)
            end = next((end for end in ends if data[place:end] in self._id_of), None)
            ids += () if end is None else (self._id_of[data[place:end]],)
            place = place + 1 if end is None else end
        return ids


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """Both vocabularies of one model.

    Attributes:
        size: V, ids of the logits; those without text are never allowed.
        tokens: the model's vocabulary.
        by_byte: ids 0 to 255 are the bytes, then the special tokens.
        end_ids: the model's ids that end a text.
        byte_end_ids: the same in ``by_byte``.
        special_ids: text of a special token, which a grammar names without quotes → its id.
    """

    size: int
    tokens: llguidance.LLTokenizer
    by_byte: llguidance.LLTokenizer
    end_ids: tuple[int, ...]
    byte_end_ids: frozenset[int]
    special_ids: dict[str, int]
    _words: _Words = field(repr=False)
    _byte_id_of: dict[int, int] = field(repr=False)
    _special_of: dict[int, int] = field(repr=False)

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> "GrammarVocabulary":
        """Build both; takes about a second for 150,000 tokens.

        Raises:
            RequestError: no id ends a text.
        """
        texts = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        ends = sorted(i for i in eos_token_ids if i < vocab_size and texts[i])
        if not ends:
            raise RequestError(
                "[structured] structured_outputs: expected a model with a token that ends a text, "
                "got one without",
                param="structured_outputs",
                code="unsupported_value",
            )
        specials = sorted(i for i in {*tokenizer.special_ids, *ends} if i < vocab_size and texts[i])
        words = list(texts)
        for token_id in specials:
            words[token_id] = special_name(texts[token_id].decode("utf-8", "replace")).encode()
        byte_id_of = {token_id: NUM_BYTES + rank for rank, token_id in enumerate(specials)}
        byte_words = [*(bytes((b,)) for b in range(NUM_BYTES)), *(words[i] for i in specials)]
        byte_ends = [byte_id_of[i] for i in ends]
        model_words = _Words(
            words, specials, ends[0], lambda text: tokenizer.encode(text, add_special_tokens=False)
        )
        return cls(
            size=vocab_size,
            tokens=_ll_tokenizer(model_words, ends),
            by_byte=_ll_tokenizer(
                _Words(byte_words, [*byte_id_of.values()], byte_ends[0]), byte_ends
            ),
            end_ids=tuple(ends),
            byte_end_ids=frozenset(byte_ends),
            special_ids={texts[i].decode("utf-8", "replace"): i for i in specials},
            _words=model_words,
            _byte_id_of=byte_id_of,
            _special_of={byte_id: i for i, byte_id in byte_id_of.items()},
        )

    def to_bytes(self, token_id: int) -> list[int]:
        """Return a token of the model in the vocabulary of bytes."""
        special = self._byte_id_of.get(token_id)
        return list(self._words.tokens[token_id]) if special is None else [special]

    def text_of(self, token_id: int) -> bytes:
        """Return the bytes of a token, none for one that is special."""
        return b"" if token_id in self._byte_id_of else self._words.tokens[token_id]

    def spelled(self, text: bytes) -> list[int]:
        """Return the model's own tokens for a text."""
        return self._words(text)

    def text_to_bytes(self, text: str) -> list[int]:
        """Return a text, or the one special token that it names, in the vocabulary of bytes."""
        special = self.special_ids.get(text)
        return list(text.encode()) if special is None else [self._byte_id_of[special]]

    def to_tokens(self, byte_ids: Sequence[int]) -> list[int] | None:
        """Return tokens of the model for a path of bytes, the longest that fit first.

        None where no token spells a byte of the path.
        """
        found: list[int] = []
        text = bytearray()
        for byte_id in (*byte_ids, None):
            if byte_id is not None and byte_id < NUM_BYTES:
                text.append(byte_id)
                continue
            ids = self._words.longest(bytes(text))
            if sum(len(self._words.tokens[i]) for i in ids) != len(text):
                return None
            found += ids
            text.clear()
            found += () if byte_id is None else (self._special_of[byte_id],)
        return found


def special_name(text: str) -> str:
    """Return how a Lark grammar names a special token: between angle brackets, without spaces."""
    is_name = text[:1] == "<" and text[-1:] == ">" and text[1:2] != "[" and len(text.split()) == 1
    return text if is_name else f"<special:{text.replace(' ', '_')}>"


def _ll_tokenizer(words: _Words, ends: list[int]) -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=ends)


def allowed_ids(mask: bytes, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of bits, lowest first, as booleans ``[size]``."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=size, bitorder="little")
    return bits.view(np.bool_)
