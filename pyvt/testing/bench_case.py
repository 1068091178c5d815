"""BenchCase: one call that ``pyvt bench ops`` times, with what it must move and compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.ops.packed_layouts import pack_tiles
from pyvt.tensor.dtype import DType
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.testing.shape_models import random_tensor

Array = np.ndarray[Any, Any]
Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    """One timed call.

    Attributes:
        op: name in ``pyvt.ops``.
        case: the shape in words.
        make: makes the call, with its arrays, under the selected backend.
        num_bytes: the least that it reads and writes.
        num_ops: multiplies and adds of its products; 0 where memory is all.
        loop: the limit of its arithmetic, a key of the probe's loops.
    """

    op: str
    case: str
    make: Callable[[np.random.Generator], Call]
    num_bytes: int
    num_ops: int = 0
    loop: str = ""


def packed_weight(dtype: DType, shape: tuple[int, ...]) -> PackedTensor:
    """Return a random weight in tiles, laid out by NumPy where the backend lays nothing out."""
    weight = random_tensor("bench", shape, dtype)
    packed = ops.prepack_weight(weight)
    return packed if isinstance(packed, PackedTensor) else pack_tiles(weight)
