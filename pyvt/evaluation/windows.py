"""A text cut into windows of tokens, of which each scores what no window before it has.

Window i holds tokens ``[i · stride, i · stride + window)``; it scores those behind the end of the
one before, so that every token but the first of the text is scored once, all but those of the first
window with at least ``window - stride`` tokens before them. What a tokenizer puts before a text
(BOS) stands before every window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyvt.errors import ConfigError, RequestError
from pyvt.tokenizer.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Window:
    """One prompt.

    Attributes:
        token_ids: what the model reads.
        num_scored: its last tokens, which are scored.
    """

    token_ids: tuple[int, ...]
    num_scored: int


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a text.

    Attributes:
        prefix: tokens that stand before every window.
        body: the tokens of the text.
        window, stride: in tokens of the body.
    """

    prefix: tuple[int, ...]
    body: tuple[int, ...]
    window: int
    stride: int

    @property
    def num_scored(self) -> int:
        """Tokens that are scored."""
        return len(self.body) - (not self.prefix)

    def __iter__(self) -> Iterator[Window]:
        """Yield the windows in order."""
        end = 0 if self.prefix else 1
        start = 0
        while end < len(self.body):
            stop = min(start + self.window, len(self.body))
            yield Window((*self.prefix, *self.body[start:stop]), stop - end)
            end, start = stop, start + self.stride


def text_windows(
    tokenizer: Tokenizer,
    text: str,
    *,
    window: int = 512,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> Windows:
    """Cut a text into windows.

    Args:
        tokenizer: of the model.
        text: what is scored; control tokens in it count as such.
        window: tokens of a window.
        stride: tokens from one window's start to the next one's; None for half a window.
        max_tokens: how many tokens of the text to take; None for all.

    Raises:
        ConfigError: a size that cannot be.
        RequestError: the text has fewer than two tokens.
    """
    stride = max(1, window // 2) if stride is None else stride
    if window < 2:
        raise ConfigError(f"[eval] window: expected at least 2, got {window}", field="window")
    if not 1 <= stride <= window:
        raise ConfigError(
            f"[eval] stride: expected 1 to window={window}, got {stride}", field="stride"
        )
    prefix: Sequence[int] = tokenizer.encode("")
    body = tokenizer.encode(text, add_special_tokens=False)[:max_tokens]
    if len(body) < 2:
        raise RequestError(
            f"[eval] text: expected at least 2 tokens, got {len(body)}; give a longer text",
            param="text",
        )
    return Windows(tuple(prefix), tuple(body), window, stride)
