"""The native CPU backend: kernels of the compiled module ``_native`` for host arrays."""

import atexit
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pyvt.dispatch.backend import Backend, add_backend
from pyvt.dispatch.table import HOST, Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.dtype import DTYPES, DType
from pyvt.tensor.host_buffer import host_buffer
from pyvt.tensor.packed_tensor import TILE16, PackedTensor
from pyvt.tensor.stored import Stored, stored_dtype, stored_rows

NAME = "cpu"
PRIORITY = 10


def native() -> ModuleType:
    """Return the compiled module. Raises ImportError where it was not built."""
    try:
        from pyvt.backends.cpu import _native
    except ImportError as error:
        raise ImportError(
            f"the compiled module cannot be loaded: {error}; install anew with a C++ compiler"
        ) from error
    return _native


def _supports(names: str) -> Callable[[tuple[Any, ...]], bool]:
    """Return a predicate: every float dtype and block format of a call is one of ``names``."""
    allowed = {DTYPES[name].numpy or DTYPES[name] for name in names.split()}
    allowed |= {DTYPES[name] for name in names.split()}

    def supports(dtypes: tuple[Any, ...]) -> bool:
        floats = [
            dtype
            for dtype in dtypes
            if isinstance(dtype, DType) or getattr(dtype, "kind", "") in ("f", "V")
        ]
        return all(dtype in allowed for dtype in floats)

    return supports


def _prepack(parts: Sequence[Stored]) -> PackedTensor | None:
    """Return the tiles of a weight, None for a dtype that no kernel reads in tiles."""
    module = native()
    dtype, num_columns = stored_dtype(parts[0]), parts[0].shape[1]
    number = module.DTYPES.get(dtype.name, (-1,))[0]
    num_rows = sum(part.shape[0] for part in parts)
    num_bytes = module.packed_bytes(num_rows, number, num_columns)
    if num_bytes < 0:
        return None
    data = host_buffer(num_bytes)
    module.pack_tiles(data, [stored_rows(part) for part in parts], number, num_columns)
    return PackedTensor(dtype, (num_rows, num_columns), TILE16, data)


def register() -> None:
    """Register the ops of the compiled module and the packer of weights.

    Raises ImportError where the module was not built.
    """
    module = native()
    for op, dtypes in module.OPS.items():
        kernel = getattr(module, op)
        register_kernel(op, Candidate(NAME, HOST, kernel, PRIORITY, _supports(dtypes)))
    add_backend(Backend(name=NAME, prepack=_prepack, make_plan=module.Plan))
    atexit.register(module.shutdown_threads)
