"""What a caller gets back for a request.

Outputs are not frozen: a step makes one for each request, and a frozen one takes three times as
long. Nobody changes them.
"""

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log probability of one token.

    Attributes:
        token_id: the token.
        logprob: natural logarithm of its probability under the raw logits, or with the setting
            ``processed_logprobs`` under those that were sampled from.
        text: the token decoded alone; U+FFFD stands for an incomplete character.
        token_bytes: its true bytes.
    """

    token_id: int
    logprob: float
    text: str
    token_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """The taken token of one position, its rank (1 is best), and the best tokens in order."""

    taken: Logprob
    rank: int
    top: tuple[Logprob, ...]


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One answer: the whole of it, or in a stream what is new since the last output.

    Attributes:
        index: which of the ``n`` answers.
        text: text without the stop string and without the token that ended it.
        token_ids: every sampled token, the one that ended the text included. In a stream a token
            comes with the output that carries the last of its text.
        finish_reason: None while the answer goes on.
        stop_reason: the stop string or stop token id that ended it; None for the model's own end.
        logprobs: one entry for each of ``token_ids``, None where not asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[PositionLogprobs, ...] | None = None


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """Times of one request on the engine's clock, in seconds; None where not reached.

    With ``n > 1`` tokens are those of all answers, and the first and last of them.
    ``num_cached_tokens`` are tokens of the prompt whose KV was there already.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_generated_tokens: int = 0

    @property
    def queue_ms(self) -> float | None:
        """Milliseconds from arrival to the first step that ran the request."""
        return _span_ms(self.arrival_s, self.scheduled_s)

    @property
    def prefill_ms(self) -> float | None:
        """Milliseconds from the first step to the first token."""
        return _span_ms(self.scheduled_s, self.first_token_s)

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds from arrival to the first token."""
        return _span_ms(self.arrival_s, self.first_token_s)

    @property
    def mean_tpot_ms(self) -> float | None:
        """Mean milliseconds of each token after the first, None with fewer than two."""
        span = _span_ms(self.first_token_s, self.last_token_s)
        return None if span is None or self.num_generated_tokens < 2 else span / self._num_decoded

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first by the time they took, None with fewer than two."""
        tpot = self.mean_tpot_ms
        return None if not tpot else 1000.0 / tpot

    @property
    def _num_decoded(self) -> int:
        return self.num_generated_tokens - 1


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """The state of a request, or in a stream what is new about it.

    Attributes:
        request_id: identity of the request.
        prompt: text of the prompt, None where the caller gave token ids.
        prompt_token_ids: ids of the prompt.
        outputs: one entry for each answer.
        prompt_logprobs: one entry for each token of the prompt, None for the first, which nothing
            precedes; None where not asked for. In a stream they come once, with the first output.
        embedding: the vector of the prompt, where ``prompt_pooling`` was asked for; it comes once.
        finished: whether this is the last output of the request.
        metrics: its times so far.
        error: what went wrong when a finish reason is ``error``; which limit of time ended the
            request when it is ``abort``.
        warnings: what of the request is not honoured, such as keywords of a lax schema.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    embedding: tuple[float, ...] | None = None
    finished: bool = False
    metrics: RequestMetrics
    error: str | None = None
    warnings: tuple[str, ...] = ()


def unit_vector(vector: Sequence[float]) -> tuple[float, ...]:
    """Return a vector of length 1 in the direction of another; one without a length as it is."""
    length = math.sqrt(sum(value * value for value in vector))
    return tuple(value / length for value in vector) if length else tuple(vector)


def vector_as_base64(vector: Sequence[float]) -> str:
    """Return a vector as OpenAI sends it: little-endian f32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _span_ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else (end_s - start_s) * 1000.0
