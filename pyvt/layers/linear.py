"""Linear layers: one matrix, or several that share their input as one fused matrix.

Dims: N outputs, K inputs, H hidden size, D head size, I intermediate size, ``...`` leading dims.
"""

from collections.abc import Mapping

from pyvt.dispatch import empty
from pyvt.layers.module import Module
from pyvt.ops.numerics import Array
from pyvt.quant import LinearMethod, WeightSettings, linear_method
from pyvt.weights.param import MATRIX, VECTOR, Parameter, ParamSlot, Put


class Linear(Module):
    """``x · weightᵀ + bias``; the checkpoint names are ``weight`` and ``bias``."""

    def __init__(self, num_inputs: int, num_outputs: int, *, bias: bool = False) -> None:
        self.weight = Parameter(MATRIX, ParamSlot("weight", (num_outputs, num_inputs)))
        self.bias = Parameter(VECTOR, ParamSlot("bias", (num_outputs,))) if bias else None
        self._method: LinearMethod | None = None

    def after_load(self, settings: WeightSettings) -> None:
        """Choose the method by the type of the loaded weight."""
        self._method = linear_method(self.weight.data, settings)

    def __call__(self, x: Array) -> Array:
        """Return ``[..., N]`` in the dtype of ``x`` ``[..., K]``."""
        assert self._method is not None, "a layer runs after loading"
        return self._method.apply(x, None if self.bias is None else self.bias.array)


class FusedLinear(Module):
    """Several matrices over one input, kept as one where their stored types are equal.

    ``parts`` maps each checkpoint name to its number of outputs; results come side by side in that
    order. ``orders`` gives the stored row of each output for those that are stored in another one.
    """

    is_named = False

    def __init__(
        self,
        num_inputs: int,
        parts: dict[str, int],
        *,
        bias: bool = False,
        orders: Mapping[str, Array] | None = None,
    ) -> None:
        orders = orders or {}
        self.weight = Parameter(
            MATRIX,
            *(
                ParamSlot(f"{name}.weight", (n, num_inputs), orders.get(name))
                for name, n in parts.items()
            ),
        )
        self.bias: Parameter | None = None
        if bias:
            self.bias = Parameter(
                VECTOR, *(ParamSlot(f"{name}.bias", (n,)) for name, n in parts.items())
            )
        self._steps: tuple[tuple[LinearMethod, Array | None, slice], ...] = ()
        self._num_outputs = 0

    def after_load(self, settings: WeightSettings) -> None:
        """Choose a method for each part of one type."""
        bias, start, steps = None if self.bias is None else self.bias.array, 0, []
        for part in self.weight.parts:
            columns = slice(start, start + part.shape[0])
            part_bias = None if bias is None else bias[columns]
            steps.append((linear_method(part, settings), part_bias, columns))
            start = columns.stop
        self._steps, self._num_outputs = tuple(steps), start

    def place(self, put: Put) -> None:
        """Put the parameters, and the parts of the bias that the products add."""
        super().place(put)
        self._steps = tuple(
            (method, None if bias is None else put(bias), columns)
            for method, bias, columns in self._steps
        )

    def __call__(self, x: Array) -> Array:
        """Return ``[..., ΣN]`` in the dtype of ``x`` ``[..., K]``."""
        out: Array = empty((*x.shape[:-1], self._num_outputs), x.dtype, beside=x)
        for method, bias, columns in self._steps:
            method.apply(x, bias, out=out[..., columns])
        return out


class QKVLinear(FusedLinear):
    """Query, key and value projections ``[..., (N + 2·Nk)·D]``.

    ``is_gated`` has a gate of D rows behind the query of each head: ``[..., (2·N + 2·Nk)·D]``.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        is_gated: bool = False,
    ) -> None:
        kv_size = num_kv_heads * head_dim
        q_size = num_heads * head_dim * (2 if is_gated else 1)
        parts = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        super().__init__(hidden_size, parts, bias=bias)


class GateUpLinear(FusedLinear):
    """Gate and up projections of a gated MLP ``[..., 2·I]``."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        super().__init__(hidden_size, parts, bias=bias)
