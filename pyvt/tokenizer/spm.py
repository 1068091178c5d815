"""SentencePiece BPE in plain Python, for GGUF vocabularies that come with scores, not merges.

1. Cut the text at added tokens, literally, the longest first. A run at the start of the text or
   after an added token gets one space in front, if the model adds a space prefix.
2. Spaces become ▁; the run starts as single characters.
3. Join the adjacent pair whose joined text has the highest score, the leftmost of equals, until no
   joined pair is a token.
4. A character that is no token becomes one ``<0xXX>`` token for each byte, or the unknown token.

Source: Kudo & Richardson 2018, arXiv:1808.06226; llama.cpp ``llm_tokenizer_spm``.
"""

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence

from pyvt.tokenizer.base import RenderedPrompt, check_unicode, restore
from pyvt.tokenizer.incremental import decode_ids
from pyvt.tokenizer.vocabulary import SPACE_MARK, Vocabulary


class SpmTokenizer:
    """See ``Tokenizer``."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        ids: Mapping[str, int],
        scores: Sequence[float],
        *,
        adds_space_prefix: bool,
        prefix_ids: tuple[int, ...] = (),
        suffix_ids: tuple[int, ...] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._ids = ids
        self._scores = scores
        self._adds_space_prefix = adds_space_prefix
        self._prefix_ids = prefix_ids
        self._suffix_ids = suffix_ids
        control = vocabulary.control.values()
        self._all_added = _any_of(vocabulary.added.values())
        self._harmless_added = _any_of(set(vocabulary.added.values()) - set(control))
        self._control_texts = tuple(control)

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def unused_ids(self) -> frozenset[int]:
        return self._vocabulary.unused_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._vocabulary.special_ids

    @property
    def control_texts(self) -> tuple[str, ...]:
        return self._control_texts

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._vocabulary.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def specials(self) -> Mapping[str, str]:
        return self._vocabulary.specials

    @property
    def strips_first_space(self) -> bool:
        return self._vocabulary.strips_first_space

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """See ``Tokenizer.encode``."""
        check_unicode(text, "prompt")
        ids = self._encode(text, {})
        if not add_special_tokens:
            return ids
        return [*self._prefix_ids, *ids, *self._suffix_ids]

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """See ``Tokenizer.encode_rendered``."""
        check_unicode(rendered.text, "messages")
        return self._encode(rendered.guarded, rendered.stand_ins)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """See ``Tokenizer.decode``."""
        return decode_ids(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """See ``Tokenizer.token_bytes``."""
        return self._vocabulary.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """See ``Tokenizer.token_text``."""
        return self._vocabulary.bytes_of(token_id).decode("utf-8", "replace")

    def _encode(self, guarded: str, stand_ins: Mapping[str, str]) -> list[int]:
        """Cut at added tokens; a run with stand-ins is put right before it is cut further."""
        ids: list[int] = []
        is_after_added = True
        for idx, run in enumerate(self._all_added.split(guarded)):
            if idx % 2:
                ids.append(self._ids[run])
                is_after_added = True
            elif run:
                ids += self._encode_run(restore(run, stand_ins), is_after_added)
                is_after_added = False
        return ids

    def _encode_run(self, run: str, is_after_added: bool) -> list[int]:
        """Encode a run in which no control token counts."""
        ids: list[int] = []
        for idx, part in enumerate(self._harmless_added.split(run)):
            if idx % 2:
                ids.append(self._ids[part])
                is_after_added = True
            elif part:
                prefix = " " if self._adds_space_prefix and is_after_added else ""
                ids += self._merge((prefix + part).replace(" ", SPACE_MARK))
                is_after_added = False
        return ids

    def _merge(self, text: str) -> list[int]:
        """Return the ids of a text of ▁-spaced characters."""
        pieces: list[str] = list(text)
        left = list(range(-1, len(pieces) - 1))
        right = [*range(1, len(pieces)), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(a: int, b: int) -> None:
            if a < 0 or b < 0:
                return
            joined = pieces[a] + pieces[b]
            token_id = self._ids.get(joined)
            if token_id is not None:
                heapq.heappush(queue, (-self._scores[token_id], a, b, joined))

        for idx in range(len(pieces) - 1):
            offer(idx, idx + 1)
        while queue:
            _, a, b, joined = heapq.heappop(queue)
            if not pieces[a] or not pieces[b] or pieces[a] + pieces[b] != joined:
                continue  # one of the two has been joined to another meanwhile
            pieces[a], pieces[b] = joined, ""
            right[a] = right[b]
            if right[b] >= 0:
                left[right[b]] = a
            offer(left[a], a)
            offer(a, right[a])
        return [token_id for piece in pieces if piece for token_id in self._piece_ids(piece)]

    def _piece_ids(self, piece: str) -> list[int]:
        token_id = self._ids.get(piece)
        if token_id is not None and token_id not in self._vocabulary.control:
            return [token_id]
        byte_ids = [self._ids.get(f"<0x{byte:02X}>") for byte in piece.encode()]
        found = [i for i in byte_ids if i is not None]
        if len(found) == len(byte_ids):
            return found
        return [] if self._vocabulary.unknown_id is None else [self._vocabulary.unknown_id]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that captures any of the texts, the longest first; nothing for none."""
    longest_first = sorted(set(texts), key=lambda text: (-len(text), text))
    return re.compile(
        "(" + "|".join(map(re.escape, longest_first)) + ")" if longest_first else r"(?!)()"
    )
