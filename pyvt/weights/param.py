"""Parameters: where a tensor of a checkpoint goes.

A parameter is one weight of a layer. It is filled through named slots, each a run of rows: the
fused weight of q, k and v has three. Slots of one type become one tensor; slots of different types
(a GGUF file may mix them) stay apart, in the order of the rows.

The experts of a layer are one parameter: a slot for each of its matrices, or one for the stack of
them, whichever the checkpoint has.

Dims: E experts, N rows, K elements of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import has_same_columns, joined, stack_of_one, stored_dtype
from pyvt.weights.source import Tensor

Array = np.ndarray[Any, Any]
# What a layer multiplies by.
Weight = Tensor | PackedTensor
# Makes of a stored tensor what its parameter keeps.
Convert = Callable[[Tensor, "Parameter"], Tensor]
# Puts what a parameter keeps where it is computed with; what is there already stays itself.
Put = Callable[[Any], Any]
# Makes of the rows of a matrix, kept in tensors of one type, the weight of its products.
Prepack = Callable[..., Weight]

MATRIX = "matrix"
EXPERTS = "experts"
TABLE = "table"
TIED = "tied"
VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """A run of rows that one checkpoint tensor fills; ``name`` is the tail of its name.

    ``order`` is the stored row of each row ``[N]``, None where they are the same.
    """

    name: str
    shape: tuple[int, ...]
    order: Array | None = field(default=None, compare=False)


class Parameter:
    """One weight of a layer; filled once by the loader, read-only afterwards.

    Attributes:
        slots: the tensors that fill it, by rows.
        role: ``matrix`` ``[N, K]`` for products, ``experts`` ``[E, N, K]`` for those of each
            expert, ``table`` ``[N, K]`` for row look-up, ``tied`` for both, ``vector`` ``[N]`` for
            norms and biases. Only the last is never packed.
        stack: the slot that may be filled in place of all others, None without one.
        parts: the tensors after loading, one, or one a slot where types differ.
    """

    __slots__ = ("_placed", "parts", "role", "slots", "stack")

    def __init__(self, role: str, *slots: ParamSlot, stack: ParamSlot | None = None) -> None:
        self.role = role
        self.slots = slots
        self.stack = stack
        self.parts: tuple[Weight, ...] = ()
        self._placed: dict[str, Tensor] = {}

    @property
    def data(self) -> Weight:
        """The tensor of a parameter that has a single part."""
        assert len(self.parts) == 1, f"{self.slots[0].name}: expected one part, is it loaded?"
        return self.parts[0]

    @property
    def array(self) -> Array:
        """The plain array of a parameter that is never packed."""
        data = self.data
        if isinstance(data, QuantTensor | PackedTensor):
            raise AssertionError(f"{self.slots[0].name}: expected a plain array")
        return data

    @property
    def nbytes(self) -> int:
        """Bytes that the loaded tensors hold."""
        return sum(int(part.nbytes) for part in self.parts)

    def place(self, slot: ParamSlot, tensor: Tensor) -> None:
        """Give a slot its tensor; its shape has been checked."""
        assert slot.name not in self._placed, f"{slot.name}: a slot is filled once"
        self._placed[slot.name] = tensor

    def finish(self, convert: Convert, prepack: Prepack) -> None:
        """Convert the placed tensors, join those of one type and prepack what is multiplied by.

        Called once all slots are full, or the stack's.
        """
        is_stacked = self.stack is not None and self.stack.name in self._placed
        slots = (self.stack,) if self.stack is not None and is_stacked else self.slots
        tensors = [
            convert(_in_order(self._placed.pop(slot.name), slot.order), self) for slot in slots
        ]
        if self.role == EXPERTS and not is_stacked:
            tensors = [stack_of_one(tensor) for tensor in tensors]
        is_mixed = len({stored_dtype(tensor) for tensor in tensors}) > 1
        is_mixed = is_mixed or not has_same_columns(tensors)
        groups = [[tensor] for tensor in tensors] if is_mixed else [tensors]
        # A table that is only looked up in stays in the file: few of its rows are ever read.
        lay_out = prepack if self.role in (MATRIX, EXPERTS, TIED) else _join
        self.parts = tuple(lay_out(*group) for group in groups)


def _in_order(tensor: Tensor, order: Array | None) -> Tensor:
    if order is None:
        return tensor
    return tensor[order] if isinstance(tensor, np.ndarray) else tensor.rows(order)


def _join(*tensors: Tensor) -> Weight:
    return joined(tensors)
