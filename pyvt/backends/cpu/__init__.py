"""The native CPU backend: kernels of the compiled module ``_native`` for host arrays."""

import atexit
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyvt.dispatch.table import HOST, Candidate
from pyvt.dispatch.table import register as register_kernel
from pyvt.tensor.dtype import DTYPES

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
    """Return a predicate: every float dtype of a call is one of ``names``."""
    allowed = {DTYPES[name].numpy for name in names.split()}

    def supports(dtypes: tuple[Any, ...]) -> bool:
        floats = [dtype for dtype in dtypes if getattr(dtype, "kind", "") in ("f", "V")]
        return all(dtype in allowed for dtype in floats)

    return supports


def register() -> None:
    """Register every op of the compiled module. Raises ImportError where it was not built."""
    module = native()
    for op, dtypes in module.OPS.items():
        kernel = getattr(module, op)
        register_kernel(op, Candidate(NAME, HOST, kernel, PRIORITY, _supports(dtypes)))
    atexit.register(module.shutdown_threads)
