"""Weights as a file holds them, by rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.tensor.dtype import BF16, F32, Q4_1
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import (
    has_same_columns,
    joined,
    matrix_of,
    stack_of_one,
    stored_dtype,
    stored_rows,
)
from pyvt.testing.random_blocks import random_weight

PLAIN = np.arange(12, dtype=np.float32).reshape(3, 4)
BLOCKS = random_weight(np.random.default_rng(0), Q4_1, 5, 64)


def test_stored_dtype_of_plain_and_packed() -> None:
    assert stored_dtype(PLAIN) is F32
    assert stored_dtype(BLOCKS) is Q4_1


@pytest.mark.parametrize("weight", [PLAIN, PLAIN.astype(BF16.numpy), PLAIN[:, :0], PLAIN[:0]])
def test_stored_rows_are_the_bytes_of_a_plain_matrix(weight: Any) -> None:
    rows = stored_rows(weight)

    assert rows.shape == (len(weight), weight.shape[1] * weight.itemsize)
    assert rows.tobytes() == weight.tobytes()
    assert weight.size == 0 or np.shares_memory(rows, weight)


def test_stored_rows_of_strided_columns_are_a_copy() -> None:
    assert stored_rows(PLAIN[:, ::2]).tobytes() == PLAIN[:, ::2].tobytes()


def test_joined_keeps_the_order_of_rows() -> None:
    blocks = joined([BLOCKS.rows(slice(2, 5)), BLOCKS.rows(slice(0, 2))])

    assert isinstance(blocks, QuantTensor)
    np.testing.assert_array_equal(blocks.blocks, np.roll(BLOCKS.blocks, -2, axis=0))
    np.testing.assert_array_equal(joined([PLAIN[1:], PLAIN[:1]]), np.roll(PLAIN, -1, axis=0))


def test_joined_single_part_is_itself() -> None:
    assert joined([PLAIN]) is PLAIN


def test_stacks_join_whatever_orders_their_matrices_have() -> None:
    own = np.arange(64, dtype=np.int32)
    turned = replace(BLOCKS, columns=own[::-1].copy())
    stacks = [stack_of_one(BLOCKS), stack_of_one(turned)]

    stack = joined(stacks)

    assert has_same_columns(stacks)
    assert not has_same_columns([BLOCKS, turned])
    assert isinstance(stack, QuantTensor)
    assert stack.columns is not None
    np.testing.assert_array_equal(stack.columns, [own, own[::-1]])
    last = matrix_of(stack, 1)
    assert isinstance(last, QuantTensor)
    np.testing.assert_array_equal(last.columns, turned.columns)
    np.testing.assert_array_equal(
        ops.dequantize(stack), [ops.dequantize(BLOCKS), ops.dequantize(BLOCKS)[:, ::-1]]
    )
