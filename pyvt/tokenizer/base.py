"""What the engine knows of a tokenizer, and a rendered chat on its way to one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyvt.errors import RequestError

# Variables of a chat template that pyvt sets itself, never among a caller's.
RENDER_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered chat that still knows which characters came from the caller's strings.

    Attributes:
        text: what a reader sees.
        guarded: ``text``, with every character of a caller's string that could be part of a control
            token replaced by its stand-in; as long as ``text``.
        stand_ins: stand-in → the character it stands for; empty when nothing was replaced.
    """

    text: str
    guarded: str
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_guarded(cls, guarded: str, stand_ins: Mapping[str, str]) -> "RenderedPrompt":
        """Make one from the guarded text."""
        return cls(restore(guarded, stand_ins), guarded, stand_ins)


def restore(guarded: str, stand_ins: Mapping[str, str]) -> str:
    """Return a guarded text with its stand-ins turned back."""
    for stand_in, char in stand_ins.items():  # a few; replace is ten times as fast as translate
        guarded = guarded.replace(stand_in, char)
    return guarded


class Tokenizer(Protocol):
    """Text to ids and back. Immutable after it was built, so any thread may call it.

    Ids of padding rows (at or above ``vocab_size``, or holes in the vocabulary) have no text: they
    decode to nothing.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that has a text."""
        ...

    @property
    def unused_ids(self) -> frozenset[int]:
        """Ids below ``vocab_size`` that stand for no token: holes, and rows a file calls unused."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that ``skip_special_tokens`` leaves out."""
        ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of added tokens that a caller's string must never turn into."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation; the model's own end-of-sequence id first."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The id of the beginning of a sequence, if there is one (added or not)."""
        ...

    @property
    def specials(self) -> Mapping[str, str]:
        """Texts of ``bos_token``, ``eos_token``, ``pad_token``, ``unk_token`` where they exist."""
        ...

    @property
    def strips_first_space(self) -> bool:
        """Whether a decoded text loses one leading space (SentencePiece's dummy prefix)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a raw text, in which added tokens count.

        ``add_special_tokens`` adds BOS and EOS where this tokenizer adds them. Raises RequestError
        for text that is not Unicode (lone surrogates).
        """
        ...

    def encode_rendered(self, rendered: RenderedPrompt) -> list[int]:
        """Return the ids of a rendered chat: the template's control tokens count, the caller's not.

        Nothing is added in front: the template writes its own BOS.
        """
        ...

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one id stands for; none for a padding row."""
        ...

    def token_text(self, token_id: int) -> str:
        """Return the text of one id alone, with U+FFFD for part of a character."""
        ...


def check_unicode(text: object, param: str) -> None:
    """Raise RequestError when ``text`` is no string, or holds half of a surrogate pair."""
    if not isinstance(text, str):
        raise RequestError(
            f"[tokenizer] {param}: expected a string, got {type(text).__name__}", param=param
        )
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"[tokenizer] {param}: expected Unicode text, "
            f"got a lone surrogate {text[error.start]!r} at character {error.start}",
            param=param,
        ) from error
