"""Log probabilities as OpenAI's two APIs show them.

``-9999.0`` is OpenAI's floor: JSON has no infinity. A token that is part of a character has its
true bytes, and the replacement character as its text.
"""

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


def completion_logprobs(
    positions: Sequence[PositionLogprobs], num_top: int, offset: int
) -> dict[str, Any]:
    """Return the object of a completion's choice.

    Args:
        positions: of each token.
        num_top: alternatives of each; the taken token is added where it is not among them.
        offset: characters before the first token.
    """
    shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    offsets = []
    for position in positions:
        taken = position.taken
        offsets.append(offset)
        offset += len(taken.text)
        shown["tokens"].append(token_name(taken))
        shown["token_logprobs"].append(max(taken.logprob, FLOOR))
        best = {token_name(t): max(t.logprob, FLOOR) for t in position.top[:num_top]}
        shown["top_logprobs"].append({**best, token_name(taken): max(taken.logprob, FLOOR)})
    return {**shown, "text_offset": offsets}


def token_name(logprob: Logprob) -> str:
    """Return a token's text, or its bytes where two tokens would have one text."""
    if "\ufffd" not in logprob.text:
        return logprob.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in logprob.token_bytes)
