"""Rows of logits, taken out and put back, on the host or on a device.

Dims: R rows, n of them named, V vocabulary.
"""

from typing import Any

import numpy as np

from pyvt import ops
from pyvt.dispatch import place

Array = np.ndarray[Any, Any]


def take_rows(logits: Array, where: Array) -> Array:
    """Return the rows ``where`` ``[n]`` i64 of ``logits`` ``[R, V]``, a copy beside them."""
    if isinstance(logits, np.ndarray):
        return logits[where]
    return ops.embedding(place(where, beside=logits), logits)


def put_rows(logits: Array, where: Array, rows: Array) -> None:
    """Overwrite the rows ``where`` ``[n]`` i64 of ``logits`` ``[R, V]``, each named once."""
    if isinstance(logits, np.ndarray):
        logits[where] = rows
        return
    vocab = logits.shape[1]
    blocks, pool = rows.reshape(-1, 1, 1, vocab), logits.reshape(-1, 1, 1, vocab)
    ops.scatter_blocks(blocks, pool, place(where, beside=logits))


def copy_of(logits: Array) -> Array:
    """Return a copy beside ``logits``."""
    return logits.copy() if isinstance(logits, np.ndarray) else ops.cast(logits, logits.dtype)
