"""What a conversion will write, decided from headers alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt.convert.gguf_writer import TableRow

Array = np.ndarray[Any, Any]
# Returns a plain array ``[..., K]``, or ``[K]``, in the order of the file to be.
Fetch = Callable[[], Array]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor of the new file.

    Attributes:
        row: its name, type and shape.
        fetches: its parts, by rows, in order; each is read when its turn comes.
    """

    row: TableRow
    fetches: tuple[Fetch, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole file: encoded metadata pairs by key, and tensors in order."""

    pairs: Mapping[str, bytes]
    tensors: tuple[PlannedTensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.row.nbytes for tensor in self.tensors)
