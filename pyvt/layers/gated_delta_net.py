"""Gated delta net: linear attention with a state of fixed size, for one layer of a model.

Dims: T tokens, H hidden size, Hk key heads, Hv value heads, Dk and Dv their sizes, Kc conv kernel,
C conv channels ``2·Hk·Dk + Hv·Dv``.
"""

import numpy as np

from pyvt import ops
from pyvt.config.hybrid import LinearAttentionConfig
from pyvt.layers.forward_batch import ForwardBatch
from pyvt.layers.linear import FusedLinear, Linear
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings
from pyvt.weights.param import VECTOR, Parameter, ParamSlot


def stored_rows(shape: LinearAttentionConfig) -> dict[str, Array]:
    """Return the stored row of each row of the projections that are fused by key head.

    Such a projection holds for each key head its q, k, the v and z of its value heads, or their b
    and a; the layer wants all q, then all k, and so on.
    """
    per_key = shape.num_value_heads // shape.num_key_heads
    value_size = per_key * shape.value_head_dim
    parts = {
        "in_proj_qkvz": (shape.key_head_dim, shape.key_head_dim, value_size, value_size),
        "in_proj_ba": (per_key, per_key),
    }
    return {
        name: _by_part(shape.num_key_heads, parts[name])
        for name in shape.projections
        if name in parts
    }


def _by_part(num_heads: int, sizes: tuple[int, ...]) -> Array:
    rows = np.arange(num_heads * sum(sizes)).reshape(num_heads, sum(sizes))
    return np.concatenate([part.ravel() for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)])


class GatedDeltaNet(Module):
    """Projections, short convolution, delta rule with decay, gated norm.

    The state of a request is two arrays, of the convolution and of the delta rule; the batch says
    from which slot each request goes on and which slots take the state behind which tokens.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers ``Qwen3NextGatedDeltaNet``.
    """

    def __init__(
        self, hidden_size: int, shape: LinearAttentionConfig, layer_idx: int, eps: float
    ) -> None:
        self.shape = shape
        self.layer_idx = layer_idx
        self.eps = eps
        self.in_proj = FusedLinear(
            hidden_size,
            {name: shape.projection_size(name) for name in shape.projections},
            orders=stored_rows(shape),
        )
        size = shape.num_channels
        decay = "A_log" if shape.has_log_decay else "A"
        self.conv = Parameter(VECTOR, ParamSlot("conv1d.weight", (size, 1, shape.conv_kernel)))
        self.decay = Parameter(VECTOR, ParamSlot(decay, (shape.num_value_heads,)))
        self.dt_bias = Parameter(VECTOR, ParamSlot("dt_bias", (shape.num_value_heads,)))
        self.norm = Parameter(VECTOR, ParamSlot("norm.weight", (shape.value_head_dim,)))
        self.out_proj = Linear(shape.value_size, hidden_size)

    def after_load(self, settings: WeightSettings) -> None:
        """Lay the taps out by channel and make the decay rate of a stored logarithm."""
        self.conv.parts = (np.ascontiguousarray(self.conv.array[:, 0].T),)
        if self.shape.has_log_decay:
            self.decay.parts = (-np.exp(self.decay.array),)

    def __call__(self, x: Array, batch: ForwardBatch) -> Array:
        """Return ``[T, H]`` for ``x`` ``[T, H]``; moves the states of the step's requests on."""
        shape, num_tokens = self.shape, x.shape[0]
        conv_state, state = batch.kv_caches[self.layer_idx]
        slots = batch.cu_seqlens_q, batch.initial_slots, batch.state_slots
        mixed = self.in_proj(x)
        qkv, z, b, a = _columns(
            mixed,
            shape.num_channels,
            shape.value_size,
            shape.num_value_heads,
            shape.num_value_heads,
        )
        qkv = ops.causal_conv1d(qkv, self.conv.array, conv_state, *slots)
        q, k, v = _columns(qkv, shape.key_size, shape.key_size, shape.value_size)
        o = ops.gated_delta_net(
            q.reshape(num_tokens, shape.num_key_heads, shape.key_head_dim),
            k.reshape(num_tokens, shape.num_key_heads, shape.key_head_dim),
            v.reshape(num_tokens, shape.num_value_heads, shape.value_head_dim),
            z.reshape(num_tokens, shape.num_value_heads, shape.value_head_dim),
            a,
            b,
            self.decay.array,
            self.dt_bias.array,
            self.norm.array,
            self.eps,
            state,
            *slots,
            head_map=shape.head_map,
        )
        return self.out_proj(o.reshape(num_tokens, shape.value_size))


def _columns(x: Array, *sizes: int) -> list[Array]:
    """Return views of columns side by side."""
    views, start = [], 0
    for size in sizes:
        views.append(x[:, start : start + size])
        start += size
    return views
