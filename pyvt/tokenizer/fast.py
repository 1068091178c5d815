"""A tokenizer that runs on a ``tokenizers`` object.

Two objects share one model: the full one, and a plain one that has no control tokens among its
added tokens. A rendered chat is encoded by the full one in one piece. Only a run between two
control tokens that holds a stand-in is encoded again, with its own characters, by the plain one.
The full object too encodes the runs between added tokens one by one, so the ids of ordinary text
are those of the one piece.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import tokenizers

from pyvt.tokenizer.base import RenderedPrompt, check_unicode
from pyvt.tokenizer.incremental import decode_ids
from pyvt.tokenizer.vocabulary import Vocabulary


class FastTokenizer:
    """See ``Tokenizer``. ``prefix_ids`` and ``suffix_ids`` come on top of the post-processor's."""

    def __init__(
        self,
        full: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        *,
        prefix_ids: tuple[int, ...] = (),
        suffix_ids: tuple[int, ...] = (),
    ) -> None:
        full.no_truncation()
        full.no_padding()
        self._full = full
        self._vocabulary = vocabulary
        self._control = vocabulary.control
        self._prefix_ids = prefix_ids
        self._suffix_ids = suffix_ids

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def special_ids(self) -> frozenset[int]:
        return self._vocabulary.special_ids

    @property
    def control_texts(self) -> tuple[str, ...]:
        return tuple(self._control.values())

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
        ids = list(self._full.encode(text, add_special_tokens=add_special_tokens).ids)
        if not add_special_tokens:
            return ids
        return [*self._prefix_ids, *ids, *self._suffix_ids]

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """See ``Tokenizer.encode_rendered``."""
        check_unicode(rendered.text, "messages")
        encoding = self._full.encode(rendered.guarded, add_special_tokens=False)
        if rendered.guarded == rendered.text:
            return list(encoding.ids)
        return list(self._with_plain_runs(encoding, rendered))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """See ``Tokenizer.decode``."""
        return decode_ids(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """See ``Tokenizer.token_bytes``."""
        return self._vocabulary.bytes_of(token_id)

    def token_text(self, token_id: int) -> str:
        """See ``Tokenizer.token_text``."""
        return self._vocabulary.bytes_of(token_id).decode("utf-8", "replace")

    def _with_plain_runs(self, encoding: Any, rendered: RenderedPrompt) -> Iterator[int]:
        """Yield the ids of an encoding of ``guarded``, with runs that hold stand-ins redone."""
        ids, offsets = encoding.ids, encoding.offsets
        borders = [idx for idx, token_id in enumerate(ids) if token_id in self._control]
        run_idx, run_start = 0, 0
        for idx in (*borders, len(ids)):
            stop = offsets[idx][0] if idx < len(ids) else len(rendered.guarded)
            run = rendered.text[run_start:stop]
            if run == rendered.guarded[run_start:stop]:
                yield from ids[run_idx:idx]
            else:
                yield from self._plain_ids(run, is_first=run_start == 0)
            if idx < len(ids):
                yield ids[idx]
                run_idx, run_start = idx + 1, offsets[idx][1]

    def _plain_ids(self, text: str, *, is_first: bool) -> list[int]:
        """Return the ids of a text in which no control token counts."""
        plain = self._plain if is_first else self._plain_inside
        ids = [
            self._plain_id_to_full.get(token_id, token_id) for token_id in plain.encode(text).ids
        ]
        forged = self._control.keys() - {self._vocabulary.unknown_id}
        if len(text) > 1 and not forged.isdisjoint(ids):
            # A model whose merges spell a control token: character by character they cannot.
            return [token_id for char in text for token_id in plain.encode(char).ids]
        return ids

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        plain = tokenizers.Tokenizer(self._full.model)
        if self._full.normalizer is not None:
            plain.normalizer = self._full.normalizer
        if self._full.pre_tokenizer is not None:
            plain.pre_tokenizer = self._full.pre_tokenizer
        plain.add_tokens(self._harmless_tokens)
        return plain

    @cached_property
    def _plain_inside(self) -> tokenizers.Tokenizer:
        """The plain object for a run that does not open the text: no dummy prefix there."""
        state = _state_of(self._full.pre_tokenizer)
        if '"prepend_scheme":"first"' not in state:
            return self._plain
        donor = {"pre_tokenizer": json.loads(state.replace(':"first"', ':"never"')), **_EMPTY}
        inside = tokenizers.Tokenizer(self._full.model)
        inside.pre_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(donor)).pre_tokenizer
        if self._full.normalizer is not None:
            inside.normalizer = self._full.normalizer
        inside.add_tokens(self._harmless_tokens)
        return inside

    @cached_property
    def _harmless_tokens(self) -> list[tokenizers.AddedToken]:
        added = self._full.get_added_tokens_decoder()
        return [added[i] for i in self._vocabulary.added if i not in self._control and i in added]

    @cached_property
    def _plain_id_to_full(self) -> dict[int, int]:
        full_ids = {text: token_id for token_id, text in self._vocabulary.added.items()}
        return {
            token_id: full_ids[token.content]
            for token_id, token in self._plain.get_added_tokens_decoder().items()
        }


_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


def _state_of(part: Any) -> str:
    """Return the JSON of a part of a ``tokenizers`` object; empty for None."""
    return "" if part is None else bytes(part.__getstate__()).decode()
