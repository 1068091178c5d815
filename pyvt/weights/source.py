"""WeightSource: named tensors of a checkpoint, whatever its file format."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import DType
from pyvt.tensor.stored import Stored

Tensor = Stored


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What the file's header says about one tensor.

    Attributes:
        name: canonical name, as Hugging Face checkpoints have it: ``model.norm.weight``.
        dtype: element type in the file.
        shape: logical shape, row-major; a matrix is ``[out, in]``.
        nbytes: bytes in the file.
        path: the file that holds it.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    path: Path

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return self.nbytes // self.dtype.block_bytes * self.dtype.block_size


class WeightSource(Protocol):
    """An open checkpoint. The loader and ``pyvt inspect`` are its callers; nothing mutates it."""

    def names(self) -> Iterable[str]:
        """Return the canonical names of all tensors, each once, in file order.

        A tensor that no name table knows keeps the name of the file, so that the caller can account
        for it.
        """
        ...

    def info(self, name: str) -> TensorInfo:
        """Return what the header says, without touching data. Raises CheckpointError if unknown."""
        ...

    def get(self, name: str) -> Tensor:
        """Return a tensor as a read-only view of the mapped file, packed blocks as they are.

        It is a copy only where a view cannot be: data that the file does not align for its element
        type, and rows that the format stores in another order. Views stay valid after ``close``.
        Raises CheckpointError for an unknown name or a closed source.
        """
        ...

    def release(self) -> None:
        """Take the pages of all tensors out of memory; a view that is touched reads them again.

        Called after each parameter that was copied, so that a checkpoint and its copy are never
        resident at once.
        """
        ...

    def close(self) -> None:
        """Let go of the mapped files; may be called twice."""
        ...


def unknown_tensor(path: Path, name: str, known: Iterable[str]) -> CheckpointError:
    """Return the error for a name that a source does not hold; the caller raises it."""
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "list the names with pyvt inspect"
    return CheckpointError(
        f"[weights] {str(path)!r}: expected a tensor {name!r}, got none of that name; {hint}",
        path=path,
        tensor=name,
    )
