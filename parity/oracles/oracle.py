"""The form of an oracle: what it is called, and how to run it on the inputs of a case."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Oracle:
    """``callable`` names the public code (or SELF and the formula); ``run`` calls it."""

    callable: str
    run: Callable[[Arrays], Arrays]


def wide(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a float array as a torch tensor in f64; other dtypes as they are."""
    is_int = array.dtype.kind in "iub"
    plain = array if is_int else array.astype(np.float64)
    return torch.from_numpy(np.array(plain, order="C"))
