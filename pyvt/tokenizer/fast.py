"""A tokenizer that runs on a ``tokenizers`` object.

A rendered chat without stand-ins goes through that object in one piece. Else two more are made: one
that knows the added tokens and no model, to find the template's control tokens, and one with the
same model but without control tokens, for the runs between them. The full object too encodes the
runs between added tokens one by one, so the ids of ordinary text are those of the one piece.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tokenizers

from pyvt.errors import PyvtError, RequestError
from pyvt.tokenizer.base import RenderedPrompt, check_unicode
from pyvt.tokenizer.incremental import decode_ids
from pyvt.tokenizer.vocabulary import Vocabulary


@contextmanager
def package_faults_as(kind: type[PyvtError], text: str) -> Iterator[None]:
    """Turn what ``tokenizers`` raises, panics of its Rust code too, into an error of pyvt.

    It raises plain ``Exception`` for every fault, and ``PanicException`` derives from none.
    """
    try:
        yield
    except PyvtError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{text}, got {error}") from error


def _refusing(param: str) -> AbstractContextManager[None]:
    """The errors of encoding: the file's own, such as a regex that takes too long on a text."""
    text = f"[tokenizer] {param}: expected text that the model's tokenizer can encode"
    return package_faults_as(RequestError, text)


@dataclass(frozen=True, slots=True)
class Encoder:
    """A ``tokenizers`` object that cuts texts.

    ``spelled`` maps ids of the object that are no tokens of the model to tokens that spell them.
    """

    full: tokenizers.Tokenizer
    spelled: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class FastTokenizer:
    """See ``Tokenizer``. ``prefix_ids`` and ``suffix_ids`` come on top of the post-processor's.

    ``make_encoder`` is called for the first text: who has ids needs the vocabulary only.
    """

    def __init__(
        self,
        make_encoder: Callable[[], Encoder],
        vocabulary: Vocabulary,
        *,
        prefix_ids: tuple[int, ...] = (),
        suffix_ids: tuple[int, ...] = (),
    ) -> None:
        self._make_encoder: Callable[[], Encoder] | None = make_encoder
        self._vocabulary = vocabulary
        self._control = vocabulary.control
        self._forgeable_ids = frozenset(self._control.keys() - {vocabulary.unknown_id})
        self._prefix_ids = prefix_ids
        self._suffix_ids = suffix_ids
        self._bytes_of: dict[int, bytes] = {}

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
        with _refusing("prompt"):
            ids = self._ids(self._full, text, add_special_tokens=add_special_tokens)
        if not add_special_tokens:
            return ids
        return [*self._prefix_ids, *ids, *self._suffix_ids]

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """See ``Tokenizer.encode_rendered``."""
        check_unicode(rendered.text, "messages")
        with _refusing("messages"):
            if rendered.guarded == rendered.text:
                return self._ids(self._full, rendered.text, add_special_tokens=False)
            return list(self._ids_of_runs(rendered))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """See ``Tokenizer.decode``."""
        return decode_ids(self, ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """See ``Tokenizer.token_bytes``."""
        found = self._bytes_of.get(token_id)
        if found is None:
            found = self._bytes_of[token_id] = self._vocabulary.bytes_of(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """See ``Tokenizer.token_text``."""
        return self._vocabulary.bytes_of(token_id).decode("utf-8", "replace")

    @cached_property
    def _encoder(self) -> Encoder:
        assert self._make_encoder is not None, "an encoder is made once"
        encoder = self._make_encoder()
        encoder.full.no_truncation()
        encoder.full.no_padding()
        self._make_encoder = None  # with what it was made from
        return encoder

    @property
    def _full(self) -> tokenizers.Tokenizer:
        return self._encoder.full

    def _ids_of_runs(self, rendered: RenderedPrompt) -> Iterator[int]:
        """Yield the ids of control tokens and of the runs between them, put right again."""
        control_ids = {text: token_id for token_id, text in self._control.items()}
        found = self._splitter.encode(rendered.guarded)
        run_start = 0
        for text, (start, stop) in zip(found.tokens, found.offsets, strict=True):
            token_id = control_ids.get(text)
            if token_id is None:
                continue  # a harmless added token is part of its run
            yield from self._plain_ids(rendered.text[run_start:start], is_first=run_start == 0)
            yield token_id
            run_start = stop
        yield from self._plain_ids(rendered.text[run_start:], is_first=run_start == 0)

    def _plain_ids(self, text: str, *, is_first: bool) -> list[int]:
        """Return the ids of a text in which no control token counts."""
        plain = self._plain if is_first else self._plain_inside
        ids = [
            self._plain_id_to_full.get(token_id, token_id) for token_id in self._ids(plain, text)
        ]
        if len(text) > 1 and not self._forgeable_ids.isdisjoint(ids):
            # A model whose merges spell a control token: character by character they cannot.
            return [token_id for char in text for token_id in self._ids(plain, char)]
        return ids

    def _ids(
        self, encoder: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = True
    ) -> list[int]:
        ids = encoder.encode(text, add_special_tokens=add_special_tokens).ids
        spelled = self._encoder.spelled
        if spelled.keys().isdisjoint(ids):
            return list(ids)
        return [part for token_id in ids for part in spelled.get(token_id, (token_id,))]

    @cached_property
    def _splitter(self) -> tokenizers.Tokenizer:
        splitter = tokenizers.Tokenizer(tokenizers.models.BPE())
        if self._full.normalizer is not None:
            splitter.normalizer = self._full.normalizer
        splitter.add_tokens(list(self._full.get_added_tokens_decoder().values()))
        return splitter

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        return self._without_control(self._full.pre_tokenizer)

    @cached_property
    def _plain_inside(self) -> tokenizers.Tokenizer:
        """The plain object for a run that does not open the text: no dummy prefix there."""
        state = _state_of(self._full.pre_tokenizer)
        if '"prepend_scheme":"first"' not in state:
            return self._plain
        donor = {"pre_tokenizer": json.loads(state.replace(':"first"', ':"never"')), **_EMPTY}
        return self._without_control(tokenizers.Tokenizer.from_str(json.dumps(donor)).pre_tokenizer)

    def _without_control(self, pre_tokenizer: Any) -> tokenizers.Tokenizer:
        plain = tokenizers.Tokenizer(self._full.model)
        if self._full.normalizer is not None:
            plain.normalizer = self._full.normalizer
        if pre_tokenizer is not None:
            plain.pre_tokenizer = pre_tokenizer
        plain.add_tokens(self._harmless_tokens)
        return plain

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
