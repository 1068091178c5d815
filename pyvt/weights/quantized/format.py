"""What the readers of quantized checkpoints share: a module's tensors, and what they become."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.weights.source import WeightSource

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """What config.json says of a quantized checkpoint, beyond what its tensors say.

    Attributes:
        method: ``quant_method``.
        zero_offset: what stored zeros of GPTQ lack.
        block: rows and columns of an FP8 block.
    """

    method: str
    zero_offset: int = 1
    block: tuple[int, int] = (128, 128)


@dataclass(frozen=True, slots=True)
class Layout:
    """Logical shape and block format of a weight."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        num_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        return num_rows * self.dtype.row_bytes(self.shape[-1])


@dataclass(slots=True)
class Parts:
    """The tensors that make up one weight, by the ends of their names.

    Attributes:
        name: canonical name of the weight.
        names: end → name in the source.
        half: of a scale that gate and up of experts share, the half that is this weight's; None
            where it is whole.
    """

    source: WeightSource
    name: str
    names: dict[str, str] = field(default_factory=dict)
    half: int | None = None

    def __contains__(self, part: str) -> bool:
        return part in self.names

    def shape(self, part: str) -> tuple[int, ...]:
        """Return the stored shape of a part. Raises CheckpointError where it has no two dims."""
        info = self.source.info(self.names[part])
        if len(info.shape) < 2:
            raise CheckpointError(
                f"[weights] {info.name} in {str(info.path)!r}: expected two dims, got {info.shape}",
                path=info.path,
                tensor=info.name,
            )
        return info.shape

    def array(self, part: str) -> Array:
        """Return a stored part."""
        tensor = self.source.get(self.names[part])
        assert not isinstance(tensor, QuantTensor), "safetensors hold plain arrays"
        return tensor


LayoutOf = Callable[[Parts, Scheme], Layout]
Read = Callable[[Parts, Scheme, Layout], QuantTensor | Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """One form of a quantized weight.

    Attributes:
        needs: ends of the names that it is told by, and the dtype that a part must have.
        methods: ``quant_method`` values that it belongs to; empty for all.
        layout: what the weight becomes, without reading its data.
        read: the weight.
    """

    needs: Mapping[str, str | None]
    layout: LayoutOf
    read: Read
    methods: tuple[str, ...] = ()

    def fits(self, parts: Parts, scheme: Scheme) -> bool:
        """Return whether a module's tensors are of this form."""
        if self.methods and scheme.method not in self.methods:
            return False
        return all(
            part in parts
            and (dtype is None or parts.source.info(parts.names[part]).dtype.name == dtype)
            for part, dtype in self.needs.items()
        )
