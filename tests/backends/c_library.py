"""libpyvt_ops as ctypes has it: its tensors, and the library itself."""

import ctypes
from pathlib import Path

import numpy as np

OK, INVALID = 0, 1
MAX_RANK = 6


class Tensor(ctypes.Structure):
    """The pyvt_tensor of c_api.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


def path() -> Path:
    """Where the library lies: beside the module that is tested."""
    from pyvt.backends.cpu import _native

    return Path(_native.__file__).parent / "libpyvt_ops.so"


def load() -> ctypes.CDLL:
    """Return the library, its functions as ctypes finds them."""
    loaded = ctypes.CDLL(str(path()))
    loaded.pyvt_last_error.restype = ctypes.c_char_p
    loaded.pyvt_isa.restype = ctypes.c_char_p
    loaded.pyvt_packed_bytes.restype = ctypes.c_int64
    return loaded


def tensor(
    library: ctypes.CDLL, dtype: str, array: np.ndarray, shape: tuple[int, ...] = ()
) -> Tensor:
    """A view of an array; with a shape that of a weight, whose strides do not count."""
    dims = shape or array.shape
    strides = [0] * len(dims) if shape else [step // array.itemsize for step in array.strides]
    made = Tensor(
        array.ctypes.data,
        library.pyvt_dtype(dtype.encode()),
        len(dims),
        (ctypes.c_int64 * MAX_RANK)(*dims),
        (ctypes.c_int64 * MAX_RANK)(*strides),
    )
    made.owner = array  # lives as long as the view
    return made
