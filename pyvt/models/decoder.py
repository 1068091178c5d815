"""The pre-norm decoder that the families share; the config says what each layer mixes by.

Dims: T tokens, H hidden size, V vocabulary, n rows that need logits.
"""

from typing import ClassVar

from pyvt import ops
from pyvt.config.cache import KVCacheSpec, LayerSpec, StateSpec
from pyvt.config.model import ModelConfig
from pyvt.layers.embedding import Embedding
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.linear import Linear
from pyvt.layers.module import Module
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.models.decoder_layer import DecoderLayer, decoder_norm
from pyvt.models.mtp import DraftHead
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings


class Decoder(Module):
    """Embedding, layers and the last norm: everything below ``model.`` in a checkpoint.

    The residual stream is kept in the dtype that sums are in; each norm is fused with the addition
    before it.
    """

    def __init__(
        self, config: ModelConfig, settings: WeightSettings, rotary: RotaryEmbedding
    ) -> None:
        self.embed_tokens = Embedding(
            config.vocab_size, config.hidden_size, is_tied=config.tie_word_embeddings
        )
        self.layers = [DecoderLayer(config, i, rotary) for i in range(config.num_layers)]
        self.norm = decoder_norm(config)
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
        rotary = RotaryEmbedding(
            config.rope, max_positions or config.max_position_embeddings, settings.wide_dtype
        )
        self.model = Decoder(config, settings, rotary)
        self.mtp: DraftHead | None = None
        if config.num_mtp_layers:
            self.mtp = DraftHead(config, rotary, settings)
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

    def draft(self, token_ids: Array, hidden: Array, batch: ForwardBatch) -> Array:
        """Return what the draft head makes ``[T, H]`` of hidden states and the tokens behind them.

        ``token_ids`` ``[T]`` follow the tokens of the batch; the head's K and V are written.
        """
        assert self.mtp is not None, "asked only of a model with a draft head"
        return self.mtp(self.model.embed_tokens(token_ids), hidden, batch)

    def kv_cache_specs(self) -> tuple[LayerSpec, ...]:
        """Return what each layer keeps of a token, or of a request.

        K and V are in the dtype of activations, states of the delta rule in that of sums. Layers
        of the draft head come last.
        """
        num_layers = self.config.num_layers + self.config.num_mtp_layers
        return tuple(self._spec(i) for i in range(num_layers))

    def _spec(self, layer_idx: int) -> LayerSpec:
        config, linear = self.config, self.config.linear_attention
        if linear is not None and layer_idx in config.linear_layers:
            return StateSpec(
                conv_shape=linear.conv_shape,
                state_shape=linear.state_shape,
                conv_dtype=self.settings.dtype,
                state_dtype=self.settings.wide_dtype,
            )
        return KVCacheSpec(
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.settings.dtype,
            sliding_window=config.window_of(layer_idx),
        )
