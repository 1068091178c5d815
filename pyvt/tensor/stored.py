"""Weights as they lie in a file: plain arrays and blocks, by rows.

Dims: E experts, N rows, K elements of a row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyvt.tensor.dtype import DType, dtype_of
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor

Array = np.ndarray[Any, Any]
Stored = Array | QuantTensor


def stored_dtype(weight: Stored) -> DType:
    """Return the dtype of a plain or packed weight."""
    return weight.dtype if isinstance(weight, QuantTensor) else dtype_of(weight)


def columns_of(weight: Stored | PackedTensor) -> Array | None:
    """Return the order of the columns of a packed weight, None where it is their own."""
    return weight.columns if isinstance(weight, QuantTensor | PackedTensor) else None


def has_same_columns(parts: Sequence[Stored]) -> bool:
    """Whether matrices have their columns in one order, so that they can be one.

    Each matrix of a stack has an order of its own, so that stacks always can.
    """
    orders = [columns_of(part) for part in parts]
    given = [order for order in orders if order is not None]
    if parts[0].ndim > 2:
        return True
    is_all_or_none = len(given) in (0, len(orders))
    return is_all_or_none and all(np.array_equal(order, given[0]) for order in given)


def joined_columns(parts: Sequence[Stored]) -> Array | None:
    """Return the order of the columns of tensors that become one, None where it is their own.

    ``[K]`` of matrices, ``[E, K]`` of stacks, where one that has no order gets its own.
    """
    orders = [columns_of(part) for part in parts]
    if parts[0].ndim == 2 or all(order is None for order in orders):
        return orders[0]
    own = np.arange(parts[0].shape[-1], dtype=np.int32)
    of_parts = zip(parts, orders, strict=True)
    return np.concatenate(
        [
            np.broadcast_to(own if order is None else order, (part.shape[0], len(own)))
            for part, order in of_parts
        ]
    )


def stored_rows(weight: Stored) -> Array:
    """Return the bytes of a matrix, uint8 ``[N, bytes of a row]``; a view but for odd strides."""
    if isinstance(weight, QuantTensor):
        return weight.blocks
    num_bytes = weight.shape[1] * weight.itemsize
    return np.ascontiguousarray(weight).reshape(-1).view(np.uint8).reshape(len(weight), num_bytes)


def matrix_of(weight: Stored, index: int) -> Stored:
    """Return a matrix ``[N, K]`` of a stack ``[E, N, K]``; a view."""
    if isinstance(weight, QuantTensor):
        columns = None if weight.columns is None else weight.columns[index]
        return QuantTensor(weight.dtype, weight.shape[1:], weight.blocks[index], columns)
    matrix: Array = weight[index]
    return matrix


def stack_of_one(weight: Stored) -> Stored:
    """Return a matrix ``[N, K]`` as a stack ``[1, N, K]``; a view."""
    if isinstance(weight, QuantTensor):
        columns = None if weight.columns is None else weight.columns[None]
        return QuantTensor(weight.dtype, (1, *weight.shape), weight.blocks[None], columns)
    stack: Array = weight[None]
    return stack


def rows_of_matrices(weight: Stored, rows: slice) -> Stored:
    """Return the same rows of each matrix of a stack ``[E, N, K]``; a view."""
    if isinstance(weight, QuantTensor):
        blocks = weight.blocks[:, rows]
        shape = (*blocks.shape[:2], weight.shape[2])
        return QuantTensor(weight.dtype, shape, blocks, weight.columns)
    part: Array = weight[:, rows]
    return part


def joined(parts: Sequence[Stored]) -> Stored:
    """Return tensors of one dtype as one, rows or matrices of a stack in this order.

    A single one stays itself.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, QuantTensor):
        blocks = np.concatenate([part.blocks for part in parts if isinstance(part, QuantTensor)])
        shape = (len(blocks), *first.shape[1:])
        return QuantTensor(first.dtype, shape, blocks, joined_columns(parts))
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
