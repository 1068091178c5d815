"""The accumulation rule that every reference body follows.

A reference widens its inputs to the accumulation dtype, computes there, and rounds once into its
output: f64 where any input is f64, else f32.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def accum_dtype(*arrays: Array) -> "np.dtype[Any]":
    """Return f64 where any of the arrays is f64, else f32."""
    is_f64 = any(array.dtype == np.float64 for array in arrays)
    return np.dtype(np.float64 if is_f64 else np.float32)
