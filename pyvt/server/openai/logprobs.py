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
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
    offset: int,
    first: str = "",
) -> dict[str, Any]:
    """Return the object of a completion's choice.

    Args:
        positions: of each token; None for the first of an echoed prompt, which nothing precedes.
        num_top: alternatives of each; the taken token is added where it is not among them.
        offset: characters before the first token.
        first: the text of that first token.
    """
    shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    offsets = []
    for position in positions:
        offsets.append(offset)
        if position is None:
            offset += len(first)
            name, logprob, best = first, None, None
        else:
            taken = position.taken
            offset += len(taken.text)
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
