"""Parameters: where a tensor of a checkpoint goes.

A parameter is one weight of a layer. It is filled through named slots, each a run of rows: the
fused weight of q, k and v has three. Slots of one type become one tensor; slots of different types
(a GGUF file may mix them) stay apart, in the order of the rows.

Dims: N rows, K elements of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.tensor.dtype import DType, dtype_of
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.source import Tensor

Array = np.ndarray[Any, Any]
Convert = Callable[[Tensor, "Parameter"], Tensor]

MATRIX = "matrix"
TABLE = "table"
VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class ParamSlot:
    """A run of rows that one checkpoint tensor fills; ``name`` is the tail of its name."""

    name: str
    shape: tuple[int, ...]


def tensor_dtype(tensor: Tensor) -> DType:
    """Return the dtype of a plain or packed tensor."""
    return tensor.dtype if isinstance(tensor, QuantTensor) else dtype_of(tensor)


class Parameter:
    """One weight of a layer; filled once by the loader, read-only afterwards.

    Attributes:
        slots: the tensors that fill it, by rows.
        role: ``matrix`` ``[N, K]`` for products, ``table`` ``[N, K]`` for row look-up, ``vector``
            ``[N]`` for norms and biases. Only the first two may be packed.
        parts: the tensors after loading, one, or one a slot where types differ.
    """

    __slots__ = ("_placed", "parts", "role", "slots")

    def __init__(self, role: str, *slots: ParamSlot) -> None:
        self.role = role
        self.slots = slots
        self.parts: tuple[Tensor, ...] = ()
        self._placed: dict[str, Tensor] = {}

    @property
    def data(self) -> Tensor:
        """The tensor of a parameter that has a single part."""
        assert len(self.parts) == 1, f"{self.slots[0].name}: expected one part, is it loaded?"
        return self.parts[0]

    @property
    def array(self) -> Array:
        """The plain array of a parameter that is never packed."""
        data = self.data
        assert isinstance(data, np.ndarray), f"{self.slots[0].name}: expected a plain array"
        return data

    @property
    def nbytes(self) -> int:
        """Bytes that the loaded tensors hold."""
        return sum(int(part.nbytes) for part in self.parts)

    def place(self, slot: ParamSlot, tensor: Tensor) -> None:
        """Give a slot its tensor; its shape has been checked."""
        assert slot.name not in self._placed, f"{slot.name}: a slot is filled once"
        self._placed[slot.name] = tensor

    def finish(self, convert: Convert) -> None:
        """Convert the placed tensors and join those of one type; called once all slots are full."""
        tensors = [convert(self._placed.pop(slot.name), self) for slot in self.slots]
        self.parts = tuple(tensors) if len({_kind(t) for t in tensors}) > 1 else (_join(tensors),)


def _kind(tensor: Tensor) -> str:
    return tensor_dtype(tensor).name


def _join(tensors: list[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    first = tensors[0]
    if isinstance(first, QuantTensor):
        blocks = np.concatenate([t.blocks for t in tensors if isinstance(t, QuantTensor)])
        return QuantTensor(first.dtype, (blocks.shape[0], *first.shape[1:]), blocks)
    return np.concatenate([t for t in tensors if isinstance(t, np.ndarray)])
