"""The largest entries of a row in their one order: value falling, ties by the lowest index."""

import numpy as np

from pyvt.ops.numerics import Array


def largest(row: Array, num: int) -> Array:
    """Return the indices of the ``num`` largest entries of ``row [V]``, ``num <= V``, in order.

    The row is partitioned, not sorted. NaN counts as −inf.
    """
    if num == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(row, row.size - num)[row.size - num]
    above = np.flatnonzero(row > threshold)
    equal = np.flatnonzero(row == threshold)[: num - above.size]
    found = np.concatenate((above[np.argsort(-row[above], kind="stable")], equal))
    if found.size < num:  # NaN is partitioned to the end and compares with nothing
        return largest(np.where(np.isnan(row), row.dtype.type(-np.inf), row), num)
    return found
