"""Attention over the paged KV cache.

Dims: T tokens, H hidden size, N query heads, Nk KV heads, D head size.
"""

from pyvt import ops
from pyvt.config.model import ModelConfig
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.linear import Linear, QKVLinear
from pyvt.layers.module import Module
from pyvt.layers.norm import RMSNorm
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.ops.numerics import Array
from pyvt.weights.param import Put


class Attention(Module):
    """Grouped-query attention with RoPE, for one layer of a model.

    Query and key heads are normed before RoPE where the family does so. K and V of the step's
    tokens are written to the cache first, so prefill and decode read them alike. Where the family
    gates its attention, each head of ``q_proj`` is D rows of query and D rows of gate.
    """

    def __init__(self, config: ModelConfig, layer_idx: int, rotary: RotaryEmbedding) -> None:
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.window = config.window_of(layer_idx)
        self.norm_eps = config.rms_norm_eps
        self.is_gated = config.has_output_gate
        self.layer_idx = layer_idx
        self.rotary = rotary
        self.qkv_proj = QKVLinear(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            bias=config.attention_bias,
            is_gated=config.has_output_gate,
        )
        self.o_proj = Linear(
            config.num_heads * config.head_dim, config.hidden_size, bias=config.attention_bias
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.norm_offset)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, config.norm_offset)

    def place(self, put: Put) -> None:
        """Put the parameters, and the table that all layers share."""
        super().place(put)
        self.rotary.cos_sin = put(self.rotary.cos_sin)

    def __call__(self, x: Array, batch: ForwardBatch) -> Array:
        """Return ``[T, H]`` for ``x`` ``[T, H]``; writes the step's K and V."""
        num_heads, num_kv_heads = self.num_heads, self.num_kv_heads
        q_rows = num_heads * (2 if self.is_gated else 1)
        heads = self.qkv_proj(x).reshape(-1, q_rows + 2 * num_kv_heads, self.head_dim)
        q = heads[:, : q_rows : q_rows // num_heads]
        k = heads[:, q_rows : q_rows + num_kv_heads]
        v = heads[:, q_rows + num_kv_heads :]
        k_cache, v_cache = batch.kv_caches[self.layer_idx]
        group = batch.layer_groups[self.layer_idx]
        ops.rotate_and_cache(
            q,
            k,
            v,
            None if self.q_norm is None else self.q_norm.weight.array,
            None if self.k_norm is None else self.k_norm.weight.array,
            self.norm_eps,
            batch.positions,
            self.rotary.cos_sin,
            k_cache,
            v_cache,
            batch.slot_mapping[group],
        )
        o = ops.paged_attention(
            q,
            k_cache,
            v_cache,
            batch.block_tables[group],
            batch.seq_lens,
            batch.cu_seqlens_q,
            self.scale,
            window=self.window,
        )
        if self.is_gated:
            o = ops.sigmoid_gate(o, heads[:, 1:q_rows:2], out=o)
        return self.o_proj(o.reshape(-1, num_heads * self.head_dim))
