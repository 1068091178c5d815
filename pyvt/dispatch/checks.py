"""Checks of an op's arguments against symbolic dims.

An op's contract is written as one line a tensor: ``check.tensor("x", x, "T H", FLOATS)``. A capital
letter is bound by its first use and compared afterwards; a number must match; ``...`` as the first
word stands for any leading dims; ``_`` is any size. The texts of errors come from here, so that all
ops speak alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyvt.errors import DTypeError, ShapeError
from pyvt.tensor.dtype import DType, as_dtype
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor


class Check:
    """The dims that one call has bound so far, and the op's name for error texts."""

    __slots__ = ("dims", "op")

    def __init__(self, op: str, **dims: int) -> None:
        self.op = op
        self.dims = dims

    def tensor(self, name: str, array: Any, dims: str, dtypes: Sequence[DType]) -> None:
        """Check one tensor argument. Raises DTypeError or ShapeError that names op and argument."""
        self.dtype(name, array, dtypes)
        words = dims.split()
        shape = array.shape
        if words and words[0] == "...":
            words = words[1:]
            shape = shape[len(shape) - len(words) :] if len(shape) >= len(words) else shape
        if len(words) != len(shape):
            raise ShapeError(f"[{self.op}] {name}: expected dims [{dims}], got shape {array.shape}")
        for word, size in zip(words, shape, strict=True):
            if word == "_":
                continue
            expected = int(word) if word.isdigit() else self.dims.setdefault(word, size)
            if expected != size:
                raise ShapeError(f"[{self.op}] {name}: expected {word}={expected}, got {size}")

    def optional(self, name: str, array: Any, dims: str, dtypes: Sequence[DType]) -> None:
        """Check a tensor argument that may be None."""
        if array is not None:
            self.tensor(name, array, dims, dtypes)

    def dtype(self, name: str, array: Any, dtypes: Sequence[DType]) -> None:
        """Check that an argument is a tensor of one of the dtypes."""
        if isinstance(array, QuantTensor | PackedTensor):
            if array.dtype in dtypes:
                return
        elif isinstance(array, np.ndarray) or hasattr(array, "device_type"):
            # A block format has no NumPy dtype, and NumPy holds None equal to float64.
            if any(not dtype.is_block and array.dtype == dtype.numpy for dtype in dtypes):
                return
        else:
            raise DTypeError(
                f"[{self.op}] {name}: expected a numpy.ndarray, got {type(array).__name__}; "
                "convert it with numpy.asarray"
            )
        raise self._bad_dtype(name, dtypes, array.dtype)

    def named_dtype(
        self, name: str, value: DType | str, dtypes: Sequence[DType]
    ) -> "np.dtype[Any]":
        """Return the NumPy dtype of an argument that is a plain dtype or its name."""
        dtype = as_dtype(value)
        if dtype not in dtypes:
            raise self._bad_dtype(name, dtypes, dtype)
        assert dtype.numpy is not None, "an op writes plain dtypes"
        return dtype.numpy

    def _bad_dtype(self, name: str, dtypes: Sequence[DType], got: Any) -> DTypeError:
        valid = "|".join(dtype.name for dtype in dtypes)
        return DTypeError(f"[{self.op}] {name}: expected {valid}, got {got}")

    def same_shape(self, name: str, array: Any, other_name: str, other: Any) -> None:
        """Check that two tensor arguments have one shape."""
        if array.shape != other.shape:
            raise ShapeError(
                f"[{self.op}] {name}: expected shape {other.shape} as {other_name}, "
                f"got {array.shape}"
            )

    def index(self, name: str, array: Any, size: int, *, low: int = 0) -> None:
        """Check that every value of an index array on the host lies in ``[low, size)``."""
        if isinstance(array, np.ndarray) and array.size:
            for value in (int(array.min()), int(array.max())):
                if not low <= value < size:
                    raise self.fail(name, f"values in [{low}, {size})", value)

    def writeable(self, name: str, array: Any) -> None:
        """Check that a tensor argument on the host, which the op overwrites, can be written."""
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            raise ShapeError(
                f"[{self.op}] {name}: expected a writeable array, got a read-only one; pass a copy"
            )

    def disjoint(self, name: str, array: Any, **others: Any) -> None:
        """Check that an output on the host shares no memory with the named inputs."""
        for other_name, other in others.items():
            if isinstance(other, np.ndarray) and np.may_share_memory(array, other):
                raise ShapeError(
                    f"[{self.op}] {name}: expected memory apart from {other_name}, got an overlap"
                )

    def same_dtype(self, name: str, array: Any, other_name: str, other: Any) -> None:
        """Check that two tensor arguments have one dtype."""
        if array.dtype != other.dtype:
            raise DTypeError(
                f"[{self.op}] {name}: expected {other.dtype} as {other_name}, got {array.dtype}"
            )

    def output(self, out: Any, shape: tuple[int, ...], dtype: Any, name: str = "out") -> Any:
        """Return ``out`` after a check, or a new array of that shape and dtype where it is None."""
        if out is None:
            return np.empty(shape, dtype)
        if not isinstance(out, np.ndarray) and not hasattr(out, "device_type"):
            raise DTypeError(
                f"[{self.op}] {name}: expected a numpy.ndarray, got {type(out).__name__}"
            )
        if out.shape != shape:
            raise ShapeError(f"[{self.op}] {name}: expected shape {shape}, got {out.shape}")
        if out.dtype != dtype:
            raise DTypeError(f"[{self.op}] {name}: expected {np.dtype(dtype)}, got {out.dtype}")
        self.writeable(name, out)
        return out

    def every(self, name: str, array: Any, is_valid: Callable[[Any], Any], expected: str) -> None:
        """Check every value of an array on the host with a predicate over the whole array."""
        if isinstance(array, np.ndarray):
            valid = is_valid(array)
            if not valid.all():
                raise self.fail(name, f"every value {expected}", array[~valid][0].item())

    def fail(self, name: str, expected: str, got: Any) -> ShapeError:
        """Return the error for a value that no dim can say; the caller raises it."""
        return ShapeError(f"[{self.op}] {name}: expected {expected}, got {got!r}")
