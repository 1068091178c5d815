"""How far the next tokens of a model are from those of a reference: KL divergence on a text.

Both models read the same windows, one after the other; of each only the last hidden states of the
window are kept, and logits exist for ``_ROWS`` positions at a time.

Dims: T tokens of a window, n scored ones, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.errors import ConfigError
from pyvt.evaluation.perplexity import window_logprobs
from pyvt.evaluation.windows import Window, Windows
from pyvt.llm import LLM
from pyvt.worker.model_runner import ModelRunner

Array = np.ndarray[Any, Any]
Progress = Callable[[int], None]

# Rows of two full distributions, of 152,000 tokens 10 MB each.
_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """What a model's next tokens are beside the reference's, over all scored positions.

    Attributes:
        mean_kl, median_kl, p99_kl, max_kl: of ``Σ p · log(p / q)`` in nats, p the reference.
        top1_agreement: share of positions with the same most likely token.
        reference_perplexity, perplexity: of both on the same tokens.
        num_tokens: positions.
        window, stride: in tokens.
    """

    mean_kl: float
    median_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    reference_perplexity: float
    perplexity: float
    num_tokens: int
    window: int
    stride: int

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def divergence(
    llm: LLM, reference: LLM, windows: Windows, *, progress: Progress | None = None
) -> Divergence:
    """Compare the next-token distributions of two models of one tokenizer.

    Args:
        llm: the model that is judged.
        reference: the model that it should be like.
        windows: the text, cut by ``text_windows``.
        progress: called with the number of positions that are done.

    Raises:
        ConfigError: the models have other vocabularies.
        RequestError: a window is longer than a model's context.
        EngineDeadError: logits are not finite.
    """
    judged, other = _runner(llm), _runner(reference)
    sizes = [runner.model.config.vocab_size for runner in (judged, other)]
    if sizes[0] != sizes[1] or not _is_same_tokenizer(llm, reference):
        raise ConfigError(
            f"[eval] reference: expected a model of the same tokenizer, got vocabularies of "
            f"{sizes[0]} and {sizes[1]} tokens that differ",
            field="reference",
        )
    parts: list[tuple[Array, Array, Array, Array]] = []
    done = 0
    for window in windows:
        hidden = _hidden(llm, judged, window), _hidden(reference, other, window)
        next_ids = np.array(window.token_ids[-window.num_scored :], np.int64)
        for start in range(0, window.num_scored, _ROWS):
            rows = slice(start, start + _ROWS)
            q, p = (
                ops.log_softmax(runner.model.compute_logits(states[rows]))
                for runner, states in zip((judged, other), hidden, strict=True)
            )
            parts.append(_compared(q, p, next_ids[rows]))
        done += window.num_scored
        if progress is not None:
            progress(done)
    kl, is_same, q_nats, p_nats = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Divergence(
        mean_kl=float(kl.mean()),
        median_kl=float(np.median(kl)),
        p99_kl=float(np.quantile(kl, 0.99)),
        max_kl=float(kl.max()),
        top1_agreement=float(is_same.mean()),
        reference_perplexity=float(np.exp(p_nats.mean())),
        perplexity=float(np.exp(q_nats.mean())),
        num_tokens=len(kl),
        window=windows.window,
        stride=windows.stride,
    )


def _compared(q: Array, p: Array, next_ids: Array) -> tuple[Array, Array, Array, Array]:
    """Return KL, agreement and both negative log-probabilities, ``[n]`` each, of ``[n, V]``."""
    wide = p.astype(np.float64)
    shares = np.exp(wide)
    wide -= q
    # A token that is impossible in the reference adds nothing, whatever its difference is.
    wide[shares == 0] = 0
    kl = np.einsum("nv,nv->n", shares, wide)
    rows = np.arange(len(next_ids))
    is_same = q.argmax(axis=-1) == p.argmax(axis=-1)
    nats = [-x[rows, next_ids].astype(np.float64) for x in (q, p)]
    return np.maximum(kl, 0), is_same, nats[0], nats[1]


def _runner(llm: LLM) -> ModelRunner:
    runner = llm.engine.core.runner
    assert isinstance(runner, ModelRunner), "an LLM of a path runs a model"
    return runner


def _hidden(llm: LLM, runner: ModelRunner, window: Window) -> Array:
    """Return the hidden states ``[n, H]`` that the scored tokens of a window follow."""
    parts: list[Array] = []
    runner.observe_prompt = lambda hidden: parts.append(hidden.copy())
    try:
        window_logprobs(llm, window)
    finally:
        runner.observe_prompt = None
    return np.concatenate(parts)[-window.num_scored :]


def _is_same_tokenizer(llm: LLM, reference: LLM) -> bool:
    """Return whether ids have the same text; a file may have names for padding rows beyond them."""
    one, other = llm.tokenizer, reference.tokenizer
    size = min(one.vocab_size, other.vocab_size)
    return all(one.token_bytes(i) == other.token_bytes(i) for i in range(size))
