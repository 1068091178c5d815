"""How many threads NumPy's matrix products take: the setting of the BLAS that NumPy is linked to.

It holds for the whole process, and for products of NumPy outside pyvt too.
"""

import ctypes
from importlib import import_module

# The function that takes the number and the one that returns it, in each build of a BLAS.
_FUNCTIONS = (
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
)


def set_blas_threads(num_threads: int) -> bool:
    """Set the number of threads; returns False where this BLAS has no function for it."""
    library, names = _blas()
    if names is None:
        return False
    library[names[0]](ctypes.c_int(num_threads))
    return True


def blas_threads() -> int | None:
    """Return the number of threads, None where this BLAS does not say it."""
    library, names = _blas()
    return None if names is None else int(library[names[1]]())


def _blas() -> tuple[ctypes.CDLL, tuple[str, str] | None]:
    """Return NumPy's extension, through which its BLAS is searched, and the names found there."""
    library = ctypes.CDLL(import_module("numpy.linalg._umath_linalg").__file__)
    return library, next((names for names in _FUNCTIONS if hasattr(library, names[0])), None)
