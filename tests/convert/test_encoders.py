"""Quantisers of blocks: equal to public ones where those exist, and within each format's error."""

from typing import Any

import gguf
import numpy as np
import pytest

from pyvt import ops
from pyvt.convert.encoders import ENCODERS, encode_rows
from pyvt.errors import CheckpointError
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.quant_tensor import QuantTensor

Array = np.ndarray[Any, Any]

# Mean squared error over mean square, of values of a normal distribution; a format of b bits that
# rounds at random in its range has about four times that of one of b + 1 bits.
MOST_NMSE = {
    "q8_0": 3.1e-5,
    "q6_k": 3.4e-4,
    "q5_k": 1.45e-3,
    "q5_1": 1.55e-3,
    "q5_0": 1.95e-3,
    "q4_k": 5.5e-3,
    "q4_0": 7.8e-3,
}
# Half a step, or one where the greatest value is beyond the highest code, over the largest value.
MOST_ERROR = {"q8_0": 0.5 / 127, "q5_0": 1 / 16, "q4_0": 1 / 8, "q5_1": 1 / 31}
_F16_ROUNDING = 2.0**-10


def decoded(rows: Array, name: str) -> Array:
    blocks = encode_rows(rows, DTYPES[name])
    return ops.dequantize(QuantTensor(DTYPES[name], rows.shape, blocks))


def hard_rows() -> Array:
    """Return blocks that searches stumble over: zeros, ties, constants, one large value, tiny."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((12, 256)).astype(np.float32)
    rows[0] = 0
    rows[1] = 0.25
    rows[2] = -0.25
    rows[3] = np.where(np.arange(256) % 2, 1, -1)
    rows[4, 17] = 1000
    rows[5] *= np.float32(1e-20)
    rows[6] = np.abs(rows[6])
    rows[7] = -np.abs(rows[7])
    rows[8] = 0
    rows[8, 0] = -3
    rows[9] = np.linspace(-1, 1, 256)
    rows[10] *= 100
    return rows


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_0", "q5_1"])
def test_small_blocks_are_those_of_the_gguf_package(name: str) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([hard_rows(), rng.standard_normal((60, 256), np.float32)])

    blocks = encode_rows(rows, DTYPES[name])

    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(blocks, expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_values_come_back_within_the_error_of_the_format(name: str) -> None:
    rows = np.random.default_rng(2).standard_normal((64, 512), np.float32)

    error = decoded(rows, name) - rows

    assert np.mean(error**2) <= MOST_NMSE[name] * np.mean(rows**2)


@pytest.mark.parametrize("name", MOST_ERROR)
def test_no_value_of_a_small_block_is_off_by_more_than_a_step(name: str) -> None:
    rows = hard_rows()

    error = np.abs(decoded(rows, name) - rows).reshape(-1, 32)

    blocks = rows.reshape(-1, 32)
    spread = np.ptp(blocks, axis=1) if name == "q5_1" else np.abs(blocks).max(axis=1)
    rounding = np.abs(blocks).max(axis=1) * _F16_ROUNDING + 2.0**-24 * 128
    assert np.all(error.max(axis=1) <= spread * MOST_ERROR[name] + rounding)


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q6_k"])
def test_hard_superblocks_come_back_within_a_step_of_their_widest_sub_block(name: str) -> None:
    rows = hard_rows()

    error = np.abs(decoded(rows, name) - rows)

    step = {"q4_k": 2 / 15, "q5_k": 2 / 31, "q6_k": 1 / 24}[name]
    assert np.all(error.max(axis=1) <= np.abs(rows).max(axis=1) * step + 2.0**-24 * 64)
    assert np.array_equal(decoded(rows[:1], name), rows[:1])


def test_a_superblock_of_one_constant_keeps_it() -> None:
    rows = np.full((2, 256), -0.5, np.float32)

    np.testing.assert_allclose(decoded(rows, "q4_k"), rows, rtol=2.0**-9)


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_are_independent_of_the_rows_beside_them(name: str) -> None:
    rows = hard_rows()

    alone = np.concatenate([encode_rows(row[None], DTYPES[name]) for row in rows])

    np.testing.assert_array_equal(encode_rows(rows, DTYPES[name]), alone)


def test_plain_types_are_rounded_to_nearest() -> None:
    rows = np.array([[1.0, 1.00390625, 1.01171875, -65520.0]], np.float32)

    bf16 = encode_rows(rows, DTYPES["bf16"]).view(np.uint16)
    f16 = encode_rows(rows[:, :1], DTYPES["f16"]).view(np.float16)

    assert bf16.tolist() == [[0x3F80, 0x3F80, 0x3F82, 0xC780]]
    assert f16.tolist() == [[1.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    rows = np.ones((2, 32), np.float32)
    rows[1, 3] = bad

    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight: expected finite") as caught:
        encode_rows(rows, DTYPES["q8_0"], "blk.0.attn_q.weight")

    assert caught.value.tensor == "blk.0.attn_q.weight"
