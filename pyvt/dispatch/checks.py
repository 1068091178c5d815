"""Checks of an op's arguments against symbolic dims.

An op's contract is written as one line a tensor: ``check.tensor("x", x, "T H", FLOATS)``. A capital
letter is bound by its first use and compared afterwards; a number must match; ``...`` as the first
word stands for any leading dims; ``_`` is any size. The texts of errors come from here, so that all
ops speak alike.
"""

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from pyvt.dispatch.table import HOST, empty
from pyvt.errors import DTypeError, ShapeError, UnsupportedError
from pyvt.tensor.dtype import DType, as_dtype
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor

# Subclasses change what operators mean: a matrix multiplies, a masked array leaves values out.
_ARRAY_TYPES = (np.ndarray, np.memmap)
_MAX_DOUBLE = sys.float_info.max


@cache
def _parsed(dims: str) -> tuple[bool, tuple[str | int | None, ...]]:
    """Return whether leading dims are free, and the letter, the number or None for each dim."""
    words = dims.split()
    is_free = words[:1] == ["..."]
    parsed = (None if w == "_" else int(w) if w.isdigit() else w for w in words[is_free:])
    return is_free, tuple(parsed)


@cache
def _numpy_dtypes(dtypes: tuple[DType, ...]) -> "frozenset[np.dtype[Any]]":
    """Return the NumPy dtypes among some dtypes; a block format has none."""
    return frozenset(dtype.numpy for dtype in dtypes if dtype.numpy is not None)


def _is_array(array: Any) -> bool:
    return type(array) in _ARRAY_TYPES or hasattr(array, "device_type")


def _repeats(array: Any) -> bool:
    """Whether two elements are one: an axis with stride 0."""
    return array.size > 1 and any(
        stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)
    )


class Check:
    """The dims that one call has bound so far, and the op's name for error texts."""

    __slots__ = ("_device", "_made", "_place", "dims", "op")

    def __init__(self, op: str, **dims: int) -> None:
        self.op = op
        self.dims = dims
        self._made: Any = None  # the output of this call that nobody gave
        self._device: Any = None  # a tensor of the call that is on a device
        self._place: tuple[str, str] | None = None  # the first tensor and where it is

    def tensor(self, name: str, array: Any, dims: str, dtypes: Sequence[DType]) -> None:
        """Check one tensor argument. Raises DTypeError or ShapeError that names op and argument."""
        self.dtype(name, array, dtypes)
        is_free, words = _parsed(dims)
        shape, bound = array.shape, self.dims
        num_leading = len(shape) - len(words)
        if num_leading < 0 or (num_leading and not is_free):
            raise ShapeError(f"[{self.op}] {name}: expected dims [{dims}], got shape {array.shape}")
        for word, size in zip(words, shape[num_leading:], strict=True):
            if word is None:
                continue
            expected = bound.setdefault(word, size) if isinstance(word, str) else word
            if expected != size:
                raise ShapeError(f"[{self.op}] {name}: expected {word}={expected}, got {size}")

    def optional(self, name: str, array: Any, dims: str, dtypes: Sequence[DType]) -> None:
        """Check a tensor argument that may be None."""
        if array is not None:
            self.tensor(name, array, dims, dtypes)

    def dtype(self, name: str, array: Any, dtypes: Sequence[DType]) -> None:
        """Check that an argument is a tensor of one of the dtypes, where the others are."""
        if isinstance(array, QuantTensor | PackedTensor):
            self._located(name, array.blocks if isinstance(array, QuantTensor) else array.data)
            if array.dtype in dtypes:
                return
        elif _is_array(array):
            self._located(name, array)
            if array.dtype in _numpy_dtypes(tuple(dtypes)):
                return
        else:
            is_foreign = hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray)
            way = "pyvt.ops.from_dlpack" if is_foreign else "numpy.asarray"
            raise DTypeError(f"{self._no_array(name, array)}; convert it with {way}")
        raise self._bad_dtype(name, dtypes, array.dtype)

    def _located(self, name: str, array: Any) -> None:
        """Check that a tensor lies where the first one of the call does."""
        device_type = HOST if type(array) in _ARRAY_TYPES else array.device_type
        if device_type != HOST:
            self._device = array
        if self._place is None:
            self._place = name, device_type
        elif self._place[1] != device_type:
            first, wanted = self._place
            raise UnsupportedError(
                f"[{self.op}] {name}: expected it on {wanted}, where {first} is, got it on "
                f"{device_type}; put all arrays of a call on one device"
            )

    def named_dtype(
        self, name: str, value: DType | str, dtypes: Sequence[DType]
    ) -> "np.dtype[Any]":
        """Return the NumPy dtype of an argument that is a plain dtype or its name."""
        dtype = as_dtype(value)
        if dtype not in dtypes:
            raise self._bad_dtype(name, dtypes, dtype)
        assert dtype.numpy is not None, "an op writes plain dtypes"
        return dtype.numpy

    def _no_array(self, name: str, got: Any) -> str:
        return f"[{self.op}] {name}: expected a numpy.ndarray, got {type(got).__name__}"

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
        if isinstance(array, np.ndarray) and _repeats(array):
            raise ShapeError(
                f"[{self.op}] {name}: expected memory of its own for each element, "
                f"got strides {array.strides}; pass a copy"
            )

    def disjoint(self, name: str, array: Any, **others: Any) -> None:
        """Check that an output on the host shares no memory with the named inputs."""
        if array is self._made:
            return
        for other_name, other in others.items():
            if isinstance(other, np.ndarray) and np.may_share_memory(array, other):
                raise ShapeError(
                    f"[{self.op}] {name}: expected memory apart from {other_name}, got an overlap"
                )

    def apart(self, name: str, array: Any, other_name: str, other: Any) -> None:
        """Check that two overwritten arguments share no element; they may interleave."""
        if not isinstance(array, np.ndarray) or not isinstance(other, np.ndarray):
            return
        if np.shares_memory(array, other):
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
        """Return ``out`` after a check, or a new array of that shape and dtype where it is None.

        A new one is where the inputs are.
        """
        if out is None:
            self._made = empty(shape, dtype, beside=self._device)
            return self._made
        if not _is_array(out):
            raise DTypeError(self._no_array(name, out))
        self._located(name, out)
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

    def number(self, name: str, value: Any, *, low: float | None = None) -> None:
        """Check that an argument is a real number; with ``low``, a finite one from there on."""
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        if not is_number or isinstance(value, bool):
            raise DTypeError(f"[{self.op}] {name}: expected a number, got {value!r}")
        if isinstance(value, int) and abs(value) > _MAX_DOUBLE:
            raise self.fail(name, "a number in the range of f64", value)
        if low is not None and not low <= value < math.inf:
            raise self.fail(name, f"a finite number of at least {low:g}", value)

    def integer(self, name: str, value: Any, *, low: int) -> None:
        """Check that an argument is an integer of at least ``low`` that fits into 64 bits."""
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise DTypeError(f"[{self.op}] {name}: expected an integer, got {value!r}")
        if not low <= value < 1 << 63:
            raise self.fail(name, f"an integer of at least {low} below 2^63", value)

    def fail(self, name: str, expected: str, got: Any) -> ShapeError:
        """Return the error for a value that no dim can say; the caller raises it."""
        return ShapeError(f"[{self.op}] {name}: expected {expected}, got {got!r}")
