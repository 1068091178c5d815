"""Log probabilities as OpenAI's two APIs show them.

``-9999.0`` is OpenAI's floor: JSON has no infinity. A token that is part of a character has its
true bytes, and the replacement character as its text.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from pyvt.outputs import Logprob, PositionLogprobs

FLOOR = -9999.0


def chat_logprobs(positions: Sequence[PositionLogprobs], num_top: int) -> dict[str, Any]:
    """Return the object of a chat's choice."""
    content = [
        {**_entry(position.taken), "top_logprobs": [_entry(t) for t in position.top[:num_top]]}
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _entry(logprob: Logprob) -> dict[str, Any]:
    return {
        "token": logprob.text,
        "logprob": max(logprob.logprob, FLOOR),
        "bytes": list(logprob.token_bytes),
    }


class TextOffsets:
    """Where tokens begin in a text, in characters; the parts of one character share its place."""

    def __init__(self, num_chars: int = 0) -> None:
        """Begin behind so many characters."""
        self._num_chars = num_chars
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def pass_text(self, text: str) -> int:
        """Return where a text of whole characters begins that comes next."""
        begin = self._num_chars
        self._num_chars += len(text)
        return begin

    def pass_token(self, token: Logprob) -> int:
        """Return where the token begins that comes next."""
        is_inside = bool(self._decoder.getstate()[0])
        if is_inside and not (token.token_bytes and token.token_bytes[0] & 0xC0 == 0x80):
            # The character before was never completed.
            self.pass_text(self._decoder.decode(b"", True))
            is_inside = False
        if not is_inside and "\ufffd" not in token.text:
            return self.pass_text(token.text)
        return self.pass_text(self._decoder.decode(token.token_bytes))


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
    place: TextOffsets,
    first: str = "",
) -> dict[str, Any]:
    """Return the object of a completion's choice.

    Args:
        positions: of each token; None for the first of an echoed prompt, which nothing precedes.
        num_top: alternatives of each; the taken token is added where it is not among them.
        place: where the text has come to; it moves on.
        first: the text of that first token.
    """
    shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    offsets = []
    for position in positions:
        if position is None:
            offsets.append(place.pass_text(first))
            name, logprob, best = first, None, None
        else:
            taken = position.taken
            offsets.append(place.pass_token(taken))
            name, logprob = token_name(taken), max(taken.logprob, FLOOR)
            best = {token_name(t): max(t.logprob, FLOOR) for t in position.top[:num_top]}
            best[name] = logprob
        shown["tokens"].append(name)
        shown["token_logprobs"].append(logprob)
        shown["top_logprobs"].append(best)
    return {**shown, "text_offset": offsets}


def prompt_logprobs(
    positions: Sequence[PositionLogprobs | None],
) -> list[dict[str, dict[str, Any]] | None]:
    """Return vLLM's list of a prompt: for each token an object by id, the taken one included."""
    return [None if position is None else _by_id(position) for position in positions]


def _by_id(position: PositionLogprobs) -> dict[str, dict[str, Any]]:
    ranked = [*enumerate(position.top, start=1), (position.rank, position.taken)]
    return {
        str(entry.token_id): {
            "logprob": max(entry.logprob, FLOOR),
            "rank": rank,
            "decoded_token": entry.text,
        }
        for rank, entry in ranked
    }


def token_name(logprob: Logprob) -> str:
    """Return a token's text, or its bytes where two tokens would have one text."""
    if "\ufffd" not in logprob.text:
        return logprob.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in logprob.token_bytes)
