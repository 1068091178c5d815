"""Gated MLP.

Dims: T tokens, H hidden size, I intermediate size.
"""

from pyvt import ops
from pyvt.layers.linear import GateUpLinear, Linear
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array


class GatedMLP(Module):
    """``down(silu(gate(x)) · up(x))``."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        self.gate_up_proj = GateUpLinear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias)

    def __call__(self, x: Array) -> Array:
        """Return ``[T, H]`` for ``x`` ``[T, H]``."""
        gate_up = self.gate_up_proj(x)
        gate = gate_up[..., : gate_up.shape[-1] // 2]
        return self.down_proj(ops.silu_and_mul(gate_up, out=gate))  # the largest array of a step
