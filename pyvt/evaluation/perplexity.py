"""Perplexity of a model on a text."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pyvt.errors import EngineDeadError
from pyvt.evaluation.windows import Window, Windows
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams

Progress = Callable[[int], None]

# The scored tokens come as log-probabilities of the prompt; one more token is the least there is.
_SCORE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """What a model makes of a text.

    Attributes:
        perplexity: ``exp`` of the mean negative log-probability.
        error: standard error of ``perplexity``.
        nats_per_token: the mean negative log-probability.
        num_tokens: tokens that were scored.
        window, stride: in tokens.
    """

    perplexity: float
    error: float
    nats_per_token: float
    num_tokens: int
    window: int
    stride: int

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def window_logprobs(llm: LLM, window: Window) -> list[float]:
    """Return the log-probability of each scored token of a window.

    Raises EngineDeadError where logits are not finite.
    """
    (output,) = llm.generate([list(window.token_ids)], _SCORE)
    if output.prompt_logprobs is None:
        raise EngineDeadError(f"[eval] window: {output.error or 'no log-probabilities came'}")
    scored = output.prompt_logprobs[len(window.token_ids) - window.num_scored :]
    return [entry.taken.logprob for entry in scored if entry is not None]


def perplexity(llm: LLM, windows: Windows, *, progress: Progress | None = None) -> Perplexity:
    """Return the perplexity of a text, window by window.

    Args:
        llm: the model; its ``max_model_len`` must hold a window and one token more.
        windows: the text, cut by ``text_windows``.
        progress: called with the number of tokens that are scored.

    Raises:
        RequestError: a window is longer than the model's context.
        EngineDeadError: logits are not finite.
    """
    logprobs: list[float] = []
    for window in windows:
        logprobs += window_logprobs(llm, window)
        if progress is not None:
            progress(len(logprobs))
    nats = -np.array(logprobs)
    mean = float(nats.mean())
    deviation = float(nats.std(ddof=1)) if len(nats) > 1 else 0.0
    value = math.exp(mean) if mean < 700 else math.inf
    return Perplexity(
        perplexity=value,
        error=value * deviation / math.sqrt(len(nats)),
        nats_per_token=mean,
        num_tokens=len(nats),
        window=windows.window,
        stride=windows.stride,
    )
