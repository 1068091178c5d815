"""The packed weight formats against gguf-py, and the properties of their ops."""

import tracemalloc
from collections.abc import Callable

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.errors import ConfigError, DTypeError, ShapeError
from pyvt.ops.block_formats import FORMATS
from pyvt.tensor.dtype import BLOCK_FORMATS, DTYPES, GGUF_BLOCKS, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare

Q4_1, Q8_0, Q4_K, Q6_K = (DTYPES[name] for name in ("q4_1", "q8_0", "q4_k", "q6_k"))
EVERY_FORMAT = pytest.mark.parametrize("dtype", [pytest.param(d, id=d.name) for d in BLOCK_FORMATS])
OF_GGUF = pytest.mark.parametrize("dtype", [pytest.param(d, id=d.name) for d in GGUF_BLOCKS])
WITH_CODES = pytest.mark.parametrize(
    "dtype", [pytest.param(d, id=d.name) for d in BLOCK_FORMATS if d.has_codes]
)
QUANTIZABLE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def decode_by_gguf(dtype: DType, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[dtype.name.upper()])


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal f32 bit patterns; any NaN stands for any other."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    bits = [np.where(np.isnan(a), np.float32(0), a).view(np.uint32) for a in (got, want)]
    np.testing.assert_array_equal(*bits)


def bytes_of_blocks(dtype: DType) -> st.SearchStrategy[bytes]:
    size = dtype.block_bytes
    edge = st.sampled_from([b"\x00" * size, b"\xff" * size, b"\x7f" * size, b"\x80" * size])
    block = st.binary(min_size=size, max_size=size) | edge
    return st.lists(block, min_size=1, max_size=4).map(b"".join)


def test_every_block_format_has_a_decoder_of_its_size() -> None:
    sizes = {dtype.name: dtype.block_bytes for dtype in BLOCK_FORMATS}

    assert {name: known.layout.itemsize for name, known in FORMATS.items()} == sizes


@OF_GGUF
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_dequantize_any_bytes_equals_gguf_to_the_bit(dtype: DType, data: st.DataObject) -> None:
    blocks = np.frombuffer(data.draw(bytes_of_blocks(dtype)), np.uint8)
    shape = (len(blocks) // dtype.block_bytes * dtype.block_size,)

    got = ops.dequantize(QuantTensor(dtype, shape, blocks))

    assert_same_bits(got, decode_by_gguf(dtype, blocks))


@OF_GGUF
def test_dequantize_many_random_blocks_equals_gguf_to_the_bit(dtype: DType) -> None:
    rng = np.random.default_rng(dtype.gguf_id)
    blocks = rng.integers(0, 256, (600, dtype.row_bytes(512)), np.uint8)

    got = ops.dequantize(QuantTensor(dtype, (600, 512), blocks))

    assert_same_bits(got, decode_by_gguf(dtype, blocks))


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_dequantize_what_gguf_quantized_is_near(name: str) -> None:
    x = normal(np.random.default_rng(1), 8, 256)
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType[name.upper()])

    got = ops.dequantize(QuantTensor(DTYPES[name], x.shape, blocks))

    assert np.mean((got - x) ** 2) / np.mean(x**2) < 0.02


@pytest.mark.parametrize("bits", [0x7E00, 0x7D01, 0xFE00, 0x7C00, 0xFC00])
@pytest.mark.parametrize("dtype", [Q4_1, Q8_0, Q4_K, Q6_K])
def test_dequantize_scale_not_finite_is_silent_and_shows(dtype: DType, bits: int) -> None:
    weight = random_weight(np.random.default_rng(2), dtype, 3, 256)
    fields = weight.blocks[1].reshape(-1, dtype.block_bytes).view(FORMATS[dtype.name].layout)
    fields["d"].view(np.uint16)[...] = bits

    with np.errstate(all="raise"):
        values = ops.dequantize(weight)

    assert not np.isfinite(values[1]).any()
    assert np.isfinite(values[[0, 2]]).all()


def test_dequantize_into_strided_out_writes_only_there() -> None:
    weight = random_weight(np.random.default_rng(3), Q4_1, 2, 3, 64)
    buffer = np.full((2, 3, 100), 7, np.float32)

    ops.dequantize(weight, out=buffer[:, :, 10:74])

    np.testing.assert_array_equal(buffer[:, :, 10:74], ops.dequantize(weight))
    assert (buffer[:, :, :10] == 7).all()
    assert (buffer[:, :, 74:] == 7).all()


def test_dequantize_row_views_equal_rows_of_the_whole() -> None:
    weight = random_weight(np.random.default_rng(4), Q6_K, 9, 512)
    whole = ops.dequantize(weight)

    np.testing.assert_array_equal(ops.dequantize(weight.rows(slice(7, None, -3))), whole[7::-3])
    np.testing.assert_array_equal(ops.dequantize(weight.rows(np.array([8, 0]))), whole[[8, 0]])


def test_dequantize_column_view_equals_columns_of_the_whole() -> None:
    weight = random_weight(np.random.default_rng(5), Q8_0, 4, 128)
    columns = QuantTensor(Q8_0, (4, 64), weight.blocks[:, 34:102])

    np.testing.assert_array_equal(ops.dequantize(columns), ops.dequantize(weight)[:, 32:96])


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16", DTYPES["bf16"]])
def test_dequantize_other_dtype_is_f32_rounded_once(dtype: DType | str) -> None:
    weight = random_weight(np.random.default_rng(6), Q4_K, 2, 256)

    got = ops.dequantize(weight, dtype=dtype)

    np.testing.assert_array_equal(got, ops.dequantize(weight).astype(got.dtype))


@EVERY_FORMAT
def test_quant_linear_none_is_the_product_with_decoded_weights(dtype: DType) -> None:
    rng = np.random.default_rng(7)
    x, weight = normal(rng, 3, 512), random_weight(rng, dtype, 1100, 512)

    got = ops.quant_linear(x, weight)

    want = x.astype(np.float64) @ ops.dequantize(weight, dtype="f64").T
    difference = compare(got, want, "linear", "f32")
    assert difference.is_within, difference.reason


@WITH_CODES
def test_quant_linear_q8_is_near_none_on_gaussian_data(dtype: DType) -> None:
    rng = np.random.default_rng(8)
    x, weight = normal(rng, 16, 768), random_weight(rng, dtype, 200, 768)

    got = ops.quant_linear(x, weight, act="q8")

    difference = compare(got, ops.quant_linear(x, weight), "q8_against_none", "f32")
    assert difference.is_within, difference.reason


def test_quant_linear_q8_sums_groups_in_order_of_columns() -> None:
    rng = np.random.default_rng(9)
    x, weight = normal(rng, 1, 96), random_weight(rng, Q4_1, 1, 96)
    codes, scales = ops.quantize_q8_rows(x)
    fields = weight.blocks.reshape(3, 20).view(FORMATS["q4_1"].layout)[:, 0]
    d, m = fields["d"].astype(np.float32), fields["m"].astype(np.float32)
    nibbles = np.concatenate((fields["qs"] & 15, fields["qs"] >> 4), axis=1).astype(np.int64)
    groups = codes.reshape(3, 32).astype(np.int64)
    total = np.float32(0)
    for g in range(3):
        total += np.float32(nibbles[g] @ groups[g]) * (scales[0, g] * d[g])
        total += scales[0, g] * np.float32(groups[g].sum()) * m[g]

    got = ops.quant_linear(x, weight, act="q8")

    assert got[0, 0] == total


def test_quant_linear_q8_row_does_not_depend_on_other_rows() -> None:
    rng = np.random.default_rng(19)
    x, weight = normal(rng, 37, 512), random_weight(rng, Q4_K, 70, 512)

    got = ops.quant_linear(x, weight, act="q8")

    assert_same_bits(got[20:21], ops.quant_linear(x[20:21], weight, act="q8"))


@pytest.mark.parametrize("act", ["none", "q8"])
def test_quant_linear_not_a_number_stays_in_its_row(act: str) -> None:
    rng = np.random.default_rng(10)
    x, weight = normal(rng, 3, 256), random_weight(rng, Q4_K, 5, 256)
    x[1, 200] = np.nan
    with np.errstate(all="raise"):
        got = ops.quant_linear(x, weight, act=act)

    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("act", ["none", "q8"])
def test_quant_linear_into_view_of_x_dtype(act: str) -> None:
    rng = np.random.default_rng(11)
    x = normal(rng, 2, 4, 512)[:, ::2, 128:384].astype(ml_dtypes.bfloat16)
    weight = random_weight(rng, Q4_K, 6, 256)
    buffer = np.zeros((2, 2, 9), ml_dtypes.bfloat16)

    returned = ops.quant_linear(x, weight, act=act, out=buffer[..., 1:7])

    np.testing.assert_array_equal(buffer[..., 1:7], ops.quant_linear(x.copy(), weight, act=act))
    assert returned.dtype == ml_dtypes.bfloat16
    assert not buffer[..., [0, 7, 8]].any()


@pytest.mark.parametrize("act", ["none", "q8"])
def test_quant_linear_does_not_expand_the_weight(act: str) -> None:
    rng = np.random.default_rng(12)
    x, weight = normal(rng, 1, 4096), random_weight(rng, Q4_K, 4096, 4096)

    tracemalloc.start()
    ops.quant_linear(x, weight, act=act)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < weight.size * 4 // 16


def test_quant_embedding_equals_rows_of_the_whole() -> None:
    weight = random_weight(np.random.default_rng(13), Q4_1, 11, 64)
    input_ids = np.array([10, 0, 3, 3], np.int32)

    got = ops.quant_embedding(input_ids, weight)

    np.testing.assert_array_equal(got, ops.dequantize(weight)[input_ids])


def test_quant_embedding_decodes_only_rows_asked_for() -> None:
    weight = random_weight(np.random.default_rng(14), Q8_0, 20_000, 256)

    tracemalloc.start()
    ops.quant_embedding(np.array([19_999, 5]), weight)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < 100_000


@pytest.mark.parametrize("bad_id", [-1, 11, 1 << 40])
def test_quant_embedding_id_out_of_range_is_refused(bad_id: int) -> None:
    weight = random_weight(np.random.default_rng(15), Q4_1, 11, 64)

    with pytest.raises(ShapeError, match=rf"input_ids: expected values in \[0, 11\), got {bad_id}"):
        ops.quant_embedding(np.array([0, bad_id]), weight)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-60, 60))
def test_quantize_q8_rows_error_is_half_a_step(seed: int, exponent: int) -> None:
    x = normal(np.random.default_rng(seed), 2, 96) * np.float32(2.0**exponent)

    codes, scales = ops.quantize_q8_rows(x)

    steps = np.repeat(scales.astype(np.float64), 32, axis=-1)
    assert (np.abs(codes * steps - x) <= 0.500001 * steps).all()
    np.testing.assert_array_equal(np.abs(codes.reshape(-1, 32).astype(int)).max(axis=-1), 127)


def test_quantize_q8_rows_equals_gguf_where_scales_are_exact() -> None:
    x = normal(np.random.default_rng(16), 4, 64)
    x = np.clip(x, -3, 3)
    x[:, ::32] = 127 / 32
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0).reshape(-1, 34)

    codes, scales = ops.quantize_q8_rows(x)

    np.testing.assert_array_equal(codes.reshape(-1, 32), blocks[:, 2:].view(np.int8))
    np.testing.assert_array_equal(scales, 1 / 32)


def test_quantize_q8_rows_writes_into_out() -> None:
    x = normal(np.random.default_rng(17), 3, 64)
    out = np.empty((3, 64), np.int8), np.empty((3, 2), np.float32)

    codes, scales = ops.quantize_q8_rows(x, out=out)

    assert codes is out[0]
    assert scales is out[1]
    np.testing.assert_array_equal(codes, ops.quantize_q8_rows(x)[0])


X = np.zeros((2, 256), np.float32)
WEIGHT = random_weight(np.random.default_rng(18), Q4_K, 4, 256)
IDS = np.array([0, 1])


@pytest.mark.parametrize(
    ("op", "arguments", "error", "text"),
    [
        ("quant_linear", (X[:, :224], WEIGHT), ShapeError, "weight: expected K=224, got 256"),
        ("quant_linear", (X, X), DTypeError, "weight: expected q4_0|"),
        ("quant_linear", (X.astype(int), WEIGHT), DTypeError, "x: expected f64|f32|f16|bf16"),
        ("quant_linear", (X, WEIGHT, X[0]), ShapeError, "bias: expected N=4, got 256"),
        ("dequantize", (X,), DTypeError, "weight: expected q4_0|"),
        ("quant_embedding", (X[0], WEIGHT), DTypeError, "input_ids: expected i32|i64"),
        ("quant_embedding", (IDS[None], WEIGHT), ShapeError, "input_ids: expected dims"),
        ("quantize_q8_rows", (X[:, :48],), ShapeError, "x: expected K a multiple of 32, got 48"),
    ],
)
def test_op_bad_argument_is_refused(
    op: str, arguments: tuple[object, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"^\[{op}\] ") as caught:
        getattr(ops, op)(*arguments)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ops.quant_linear(X, WEIGHT, act="q4"), ConfigError, "valid names: none, q8"),
        (lambda: ops.dequantize(WEIGHT, dtype="i8"), DTypeError, "f64|f32|f16|bf16, got i8"),
        (lambda: ops.dequantize(WEIGHT, dtype="q4_k"), DTypeError, "f64|f32|f16|bf16, got q4_k"),
        (lambda: ops.dequantize(WEIGHT, out=X), ShapeError, "out: expected shape (4, 256)"),
        (lambda: ops.quant_linear(X, WEIGHT, out=X[:, :3]), ShapeError, "shape (2, 4)"),
    ],
)
def test_op_bad_setting_is_refused(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        call()

    assert text in str(caught.value)
