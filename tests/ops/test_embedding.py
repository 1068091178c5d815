"""Embedding beyond what a case can say."""

import re

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.tensor import QuantTensor
from pyvt.tensor.dtype import Q8_0

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("bad", [4, -1, 2**31 - 1])
def test_embedding_of_an_id_outside_the_vocabulary_is_refused(bad: int) -> None:
    text = f"[embedding] input_ids: expected values in [0, 4), got {bad}"

    with pytest.raises(ShapeError, match=re.escape(text)):
        ops.embedding(np.array([0, bad, 3], np.int32), WEIGHT)


def test_embedding_of_the_last_id_and_of_one_id_twice() -> None:
    got = ops.embedding(np.array([3, 0, 3]), WEIGHT)

    assert got.tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]


def test_embedding_is_a_copy() -> None:
    got = ops.embedding(np.array([1]), WEIGHT)

    assert not np.may_share_memory(got, WEIGHT)


def test_embedding_from_an_empty_vocabulary_takes_no_id() -> None:
    empty = np.zeros((0, 3), np.float32)

    assert ops.embedding(np.zeros(0, np.int32), empty).shape == (0, 3)
    with pytest.raises(ShapeError, match=re.escape("expected values in [0, 0), got 0")):
        ops.embedding(np.zeros(1, np.int32), empty)


def test_embedding_reads_a_read_only_weight() -> None:
    weight = WEIGHT.copy()
    weight.flags.writeable = False

    assert ops.embedding(np.array([2]), weight).tolist() == [[6, 7, 8]]


def test_embedding_in_another_dtype_rounds_once() -> None:
    weight = np.array([[1 + 2.0**-8 + 2.0**-40]])

    got = ops.embedding(np.array([0]), weight, dtype="bf16")

    assert got.dtype == ml_dtypes.bfloat16
    assert float(got[0, 0]) == 1 + 2.0**-7


def test_embedding_of_wrong_dims_and_dtypes_is_refused() -> None:
    with pytest.raises(ShapeError, match=re.escape("input_ids: expected dims [T]")):
        ops.embedding(np.zeros((1, 2), np.int32), WEIGHT)
    with pytest.raises(DTypeError, match=re.escape("input_ids: expected i32|i64, got uint8")):
        ops.embedding(np.zeros(2, np.uint8), WEIGHT)
    with pytest.raises(DTypeError, match=re.escape("input_ids: expected i32|i64, got float32")):
        ops.embedding(np.zeros(2, np.float32), WEIGHT)
    with pytest.raises(DTypeError, match=re.escape("dtype: expected f64|f32|f16|bf16, got i8")):
        ops.embedding(np.zeros(2, np.int32), WEIGHT, dtype="i8")


def test_embedding_into_its_weight_is_refused() -> None:
    weight = WEIGHT.copy()

    with pytest.raises(ShapeError, match="expected memory apart from weight"):
        ops.embedding(np.array([1, 0]), weight, out=weight[:2])


def test_embedding_of_a_packed_weight_decodes_its_rows() -> None:
    """Two rows of one q8_0 block: a scale of 1 in f16, then 32 signed bytes."""
    blocks = np.zeros((2, 34), np.uint8)
    blocks[:, 1], blocks[0, 2:], blocks[1, 2:] = 0x3C, 5, 0xFF
    weight = QuantTensor(Q8_0, (2, 32), blocks)

    got = ops.embedding(np.array([1, 0]), weight)
    half = ops.embedding(np.array([1]), weight, dtype="bf16")

    assert (got.dtype, half.dtype) == (np.float32, ml_dtypes.bfloat16)
    assert got.tolist() == [[-1.0] * 32, [5.0] * 32]
    with pytest.raises(ShapeError, match=r"\[0, 2\), got 2"):
        ops.embedding(np.array([2]), weight)
