"""The accumulation rule that every reference body follows.

A reference widens its inputs to the accumulation dtype, computes there, and rounds once into its
output: f64 where any input is f64, else f32. NaN and infinities are results: the table runs every
reference with NumPy's floating-point warnings off.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ROUNDS_ONCE = (np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16))


def accum_dtype(*arrays: Array) -> "np.dtype[Any]":
    """Return f64 where any of the arrays is f64, else f32."""
    is_f64 = any(array.dtype == np.float64 for array in arrays)
    return np.dtype(np.float64 if is_f64 else np.float32)


def round_into(out: Array, wide: Array) -> None:
    """Write a result of the accumulation dtype into ``out``, rounded once to nearest even.

    NumPy's cast of f64 to a dtype of ``ml_dtypes`` goes through f32 and rounds twice; here f64 goes
    through f32 rounded to odd, after which the second rounding is the only one that shows.
    """
    if wide.dtype == np.float64 and out.dtype not in _ROUNDS_ONCE:
        wide = _rounded_to_odd(wide)
    out[...] = wide


def _rounded_to_odd(wide: Array) -> Array:
    narrow = np.asarray(wide.astype(np.float32))
    back = narrow.astype(np.float64)
    is_inexact = (back != wide) & ~np.isnan(wide)
    is_too_large = is_inexact & (np.abs(back) > np.abs(wide))
    bits = narrow.view(np.uint32)
    bits -= is_too_large
    bits |= is_inexact
    return narrow
