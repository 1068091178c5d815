"""BenchCase: one call that ``pyvt bench ops`` times, with what it must move and compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

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
