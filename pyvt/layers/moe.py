"""Feed-forward layers of a mixture of experts.

Dims: T tokens, H hidden size, E experts, K experts of a token, I intermediate size of an expert.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.config.model import ModelConfig
from pyvt.config.moe import MoEConfig
from pyvt.layers.linear import Linear
from pyvt.layers.mlp import GatedMLP
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.quant import WeightSettings
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import columns_of
from pyvt.weights.param import EXPERTS, Parameter, ParamSlot


class Experts(Module):
    """The gated MLPs of all experts of a layer: three stacks of matrices.

    A checkpoint has ``gate_proj.weight`` ``[E, I, H]``, or one ``7.gate_proj.weight`` ``[I, H]``
    for each expert; ``up_proj`` likewise, and ``down_proj`` ``[E, H, I]``.
    """

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        wide, narrow = (intermediate_size, hidden_size), (hidden_size, intermediate_size)
        self.gate_proj = _stack("gate_proj", num_experts, wide)
        self.up_proj = _stack("up_proj", num_experts, wide)
        self.down_proj = _stack("down_proj", num_experts, narrow)
        self._act = "none"

    def after_load(self, settings: WeightSettings) -> None:
        """Keep whether activations are quantised before products with blocks.

        Where gate and up take their input in one order, they refer to one array of it.
        """
        self._act = settings.act
        gate, up = self.gate_proj.data, self.up_proj.data
        order, other = columns_of(gate), columns_of(up)
        if isinstance(up, QuantTensor | PackedTensor) and _is_same_order(order, other):
            self.up_proj.parts = (replace(up, columns=order),)

    def __call__(self, x: Array, expert_ids: Array, expert_weights: Array) -> Array:
        """Return the weighted sum ``[T, H]`` of each token's experts ``[T, K]``."""
        return ops.fused_experts(
            x,
            expert_ids,
            expert_weights,
            self.gate_proj.data,
            self.up_proj.data,
            self.down_proj.data,
            act=self._act,
        )


def _is_same_order(order: Any, other: Any) -> bool:
    """Whether two orders in the memory of the host are the same."""
    is_on_host = isinstance(order, np.ndarray) and isinstance(other, np.ndarray)
    return is_on_host and np.array_equal(order, other)


def _stack(name: str, num_experts: int, shape: tuple[int, int]) -> Parameter:
    slots = (ParamSlot(f"{i}.{name}.weight", shape) for i in range(num_experts))
    return Parameter(EXPERTS, *slots, stack=ParamSlot(f"{name}.weight", (num_experts, *shape)))


class SparseMoE(Module):
    """A router, the experts that it chooses for each token, and perhaps one that all tokens get.

    The shared expert's output is multiplied by the sigmoid of one logit a token.
    """

    def __init__(self, hidden_size: int, config: MoEConfig) -> None:
        self.top_k = config.num_experts_per_tok
        self.is_renormalized = config.norm_topk_prob
        self.gate = Linear(hidden_size, config.num_experts)
        self.experts = Experts(config.num_experts, hidden_size, config.moe_intermediate_size)
        self.shared_expert: GatedMLP | None = None
        self.shared_expert_gate: Linear | None = None
        if config.shared_expert_intermediate_size is not None:
            self.shared_expert = GatedMLP(hidden_size, config.shared_expert_intermediate_size)
            self.shared_expert_gate = Linear(hidden_size, 1)

    def __call__(self, x: Array) -> Array:
        """Return ``[T, H]`` for ``x`` ``[T, H]``."""
        weights, ids = ops.router_topk(self.gate(x), self.top_k, renormalize=self.is_renormalized)
        routed = self.experts(x, ids, weights)
        if self.shared_expert is None or self.shared_expert_gate is None:
            return routed
        gate = self.shared_expert_gate(x)
        return ops.add_shared_expert(routed, self.shared_expert(x), gate, out=routed)


def feed_forward(config: ModelConfig, layer_idx: int) -> GatedMLP | SparseMoE:
    """Return the feed-forward part of a layer: experts where the config has them, else an MLP."""
    if config.moe is not None and config.moe.is_sparse(layer_idx):
        return SparseMoE(config.hidden_size, config.moe)
    return GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
