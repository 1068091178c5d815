"""The pre-norm decoder that the families share.

Dims: T tokens, H hidden size, V vocabulary, n rows that need logits.
"""

from typing import ClassVar

from pyvt import ops
from pyvt.config.cache import KVCacheSpec
from pyvt.config.model import ModelConfig
from pyvt.layers.attention import Attention
from pyvt.layers.embedding import Embedding
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.linear import Linear
from pyvt.layers.module import Module
from pyvt.layers.moe import feed_forward
from pyvt.layers.norm import RMSNorm
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings


class DecoderLayer(Module):
    """Attention, then the MLP; the norm before attention belongs to the step that adds into it."""

    def __init__(self, config: ModelConfig, layer_idx: int, rotary: RotaryEmbedding) -> None:
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer_idx, rotary)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = feed_forward(config, layer_idx)

    def __call__(self, x: Array, residual: Array, batch: ForwardBatch) -> Array:
        """Return the MLP's output ``[T, H]`` for normed ``x``; adds attention into ``residual``."""
        x = self.self_attn(x, batch)
        return self.mlp(self.post_attention_layernorm.add(x, residual))


class Decoder(Module):
    """Embedding, layers and the last norm: everything below ``model.`` in a checkpoint.

    The residual stream is kept in the dtype that sums are in; each norm is fused with the addition
    before it.
    """

    def __init__(self, config: ModelConfig, settings: WeightSettings, max_positions: int) -> None:
        rotary = RotaryEmbedding(config.rope, max_positions, settings.wide_dtype)
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, is_tied=config.tie_word_embeddings
        )
        self.layers = [DecoderLayer(config, i, rotary) for i in range(config.num_layers)]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._dtype = settings.dtype

    def __call__(self, input_ids: Array, batch: ForwardBatch) -> Array:
        """Return hidden states after the last norm ``[T, H]`` in the dtype of activations."""
        residual = self.embed_tokens(input_ids)
        x = self.layers[0].input_layernorm(residual)
        if x.dtype != self._dtype.numpy:
            x = ops.cast(x, self._dtype)
        norms = [*(layer.input_layernorm for layer in self.layers[1:]), self.norm]
        for layer, norm in zip(self.layers, norms, strict=True):
            x = norm.add(layer(x, residual, batch), residual)
        return x


class DecoderForCausalLM(Module):
    """A decoder and its head; families differ by their config."""

    ignored_weights: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, config: ModelConfig, settings: WeightSettings, max_positions: int | None = None
    ) -> None:
        """Make the layers, without weights, for sequences of up to ``max_positions`` tokens."""
        self.config = config
        self.settings = settings
        self.model = Decoder(config, settings, max_positions or config.max_position_embeddings)
        self.lm_head: Linear | None = None
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids: Array, batch: ForwardBatch) -> Array:
        """Return hidden states after the last norm ``[T, H]``; writes the step's K and V."""
        return self.model(input_ids, batch)

    def compute_logits(self, hidden: Array) -> Array:
        """Return logits ``[n, V]`` in f32 (f64 in an f64 model) of hidden rows ``[n, H]``."""
        if hidden.dtype != self.settings.wide_dtype.numpy:
            hidden = ops.cast(hidden, self.settings.wide_dtype)
        if self.lm_head is None:
            return self.model.embed_tokens.as_linear(hidden)
        return self.lm_head(hidden)

    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        """Return what each layer keeps of a token; K and V are in the dtype of activations."""
        return tuple(
            KVCacheSpec(
                num_kv_heads=self.config.num_kv_heads,
                head_dim=self.config.head_dim,
                dtype=self.settings.dtype,
                sliding_window=window,
            )
            for window in self.config.sliding_windows
        )
