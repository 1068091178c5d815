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
    if len(where) == len(logits):
        return copy_of(logits)
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


def take_ids(token_ids: Array, where: Array) -> Array:
    """Return ``token_ids[where]``, i64, beside ``token_ids`` ``[R]``."""
    if isinstance(token_ids, np.ndarray):
        return token_ids[where]
    # A copy of blocks looks at bytes, so ids go as floats of their size.
    cells = token_ids.view(np.float64).reshape(-1, 1, 1, 1)
    moved: Array = ops.gather_blocks(cells, place(where, beside=token_ids))
    return moved.reshape(-1).view(np.int64)


def put_ids(token_ids: Array, where: Array, new: Array) -> None:
    """Overwrite ``token_ids[where]``, i64, each named once."""
    if isinstance(token_ids, np.ndarray):
        token_ids[where] = new
        return
    cells = token_ids.view(np.float64).reshape(-1, 1, 1, 1)
    given = new.view(np.float64).reshape(-1, 1, 1, 1)
    ops.scatter_blocks(given, cells, place(where, beside=token_ids))
