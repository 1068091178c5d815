"""The head that drafts tokens: multi-token prediction from the decoder's own hidden states.

Dims: T tokens, H hidden size.
"""

from pyvt import ops
from pyvt.config.model import ModelConfig
from pyvt.dispatch import empty
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.linear import Linear
from pyvt.layers.module import Module
from pyvt.layers.norm import RMSNorm
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.models.decoder_layer import DecoderLayer
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings


class DraftHead(Module):
    """What a token is followed by, from its hidden state and the token behind it.

    ``norm(layer(fc([norm(embedding) | norm(hidden)])))``: one layer with attention and KV of its
    own; embedding and head are those of the decoder. Its output can stand for the hidden state of
    the next token, so that it drafts more than one.

    Source: DeepSeek-AI 2024, arXiv:2412.19437; vLLM ``Qwen3NextMultiTokenPredictor``.
    """

    def __init__(
        self, config: ModelConfig, rotary: RotaryEmbedding, settings: WeightSettings
    ) -> None:
        size, eps, offset = config.hidden_size, config.rms_norm_eps, config.norm_offset
        self.pre_fc_norm_embedding = RMSNorm(size, eps, offset)
        self.pre_fc_norm_hidden = RMSNorm(size, eps, offset)
        self.fc = Linear(2 * size, size)
        self.layers = [
            DecoderLayer(config, config.num_layers + i, rotary)
            for i in range(config.num_mtp_layers)
        ]
        self.norm = RMSNorm(size, eps, offset)
        self._dtype, self._wide_dtype = settings.dtype, settings.wide_dtype

    def __call__(self, embedded: Array, hidden: Array, batch: ForwardBatch) -> Array:
        """Return ``[T, H]`` in the dtype of activations.

        Args:
            embedded: ``[T, H]``, rows of the token behind each token of the batch.
            hidden: ``[T, H]`` behind the decoder's last norm, or what this head returned.
            batch: the tokens that ``hidden`` belongs to; their K and V are written.
        """
        size = hidden.shape[1]
        both = empty((len(hidden), 2 * size), hidden.dtype, beside=hidden)
        ops.cast(self.pre_fc_norm_embedding(embedded), self._dtype, out=both[:, :size])
        ops.cast(self.pre_fc_norm_hidden(hidden), self._dtype, out=both[:, size:])
        residual = ops.cast(self.fc(both), self._wide_dtype)
        x = ops.cast(self.layers[0].input_layernorm(residual), self._dtype)
        norms = [*(layer.input_layernorm for layer in self.layers[1:]), self.norm]
        for layer, norm in zip(self.layers, norms, strict=True):
            x = norm.add(layer(x, residual, batch), residual)
        return x
