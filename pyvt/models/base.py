"""CausalLM: what the worker asks of a model.

Dims: T tokens, H hidden size, V vocabulary, n rows that need logits.
"""

from typing import ClassVar, Protocol

from pyvt.config.cache import LayerSpec
from pyvt.config.model import ModelConfig
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.ops.numerics import Array


class CausalLM(Protocol):
    """A decoder with a language-model head.

    The worker calls ``forward`` once a step, then ``compute_logits`` on the rows that
    ``batch.logits_indices`` selects. Neither keeps state: all state is in the KV caches.
    """

    config: ModelConfig
    ignored_weights: ClassVar[tuple[str, ...]]

    def forward(self, input_ids: Array, batch: ForwardBatch) -> Array:
        """Return hidden states after the last norm ``[T, H]``; writes the step's K and V."""
        ...

    def compute_logits(self, hidden: Array) -> Array:
        """Return logits ``[n, V]`` f32 (f64 in an f64 model) of hidden rows ``[n, H]``."""
        ...

    def draft(self, token_ids: Array, hidden: Array, batch: ForwardBatch) -> Array:
        """Return what the draft head makes of hidden states and the tokens behind them ``[T, H]``.

        Called after ``forward`` where tokens are drafted by a model that has such a head; its
        output can be given back as ``hidden``.
        """
        ...

    def kv_cache_specs(self) -> tuple[LayerSpec, ...]:
        """Return what each layer keeps, in the order of ``batch.kv_caches``."""
        ...
