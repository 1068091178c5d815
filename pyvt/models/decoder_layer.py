"""One layer of the pre-norm decoder: what mixes tokens, then what each token goes through.

Dims: T tokens, H hidden size.
"""

from pyvt.config.model import ModelConfig
from pyvt.layers.attention import Attention
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.gated_delta_net import GatedDeltaNet
from pyvt.layers.module import Module
from pyvt.layers.moe import feed_forward
from pyvt.layers.norm import RMSNorm
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.ops.numerics import Array


def decoder_norm(config: ModelConfig) -> RMSNorm:
    """Return a norm of the residual stream."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_offset)


class DecoderLayer(Module):
    """Attention, full or linear, then the MLP.

    The norm before attention belongs to the step that adds into it.
    """

    def __init__(self, config: ModelConfig, layer_idx: int, rotary: RotaryEmbedding) -> None:
        self.input_layernorm = decoder_norm(config)
        self.self_attn: Attention | None = None
        self.linear_attn: GatedDeltaNet | None = None
        if layer_idx in config.linear_layers:
            assert config.linear_attention is not None, "such layers have a shape"
            self.linear_attn = GatedDeltaNet(
                config.hidden_size, config.linear_attention, layer_idx, config.rms_norm_eps
            )
        else:
            self.self_attn = Attention(config, layer_idx, rotary)
        self.post_attention_layernorm = decoder_norm(config)
        self.mlp = feed_forward(config, layer_idx)

    def __call__(self, x: Array, residual: Array, batch: ForwardBatch) -> Array:
        """Return the MLP's output ``[T, H]`` for normed ``x``; adds attention into ``residual``."""
        mixer = self.self_attn or self.linear_attn
        assert mixer is not None, "a layer has one of the two"
        x = mixer(x, batch)
        return self.mlp(self.post_attention_layernorm.add(x, residual))
