"""The int8 kernels below their launcher: layouts, exactness, and equal bits on every path."""

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.ops.packed_int8 import FIELDS, pack
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases.quant_gguf import edge_weight
from pyvt.testing.random_blocks import random_weight

native = pytest.importorskip("pyvt.backends.cpu._native", reason="the native module is not built")

ISAS = native.isa_names().split()
FORMATS = list(FIELDS)


@pytest.fixture(params=ISAS)
def isa(request):
    before = native.isa()
    native.use_isa(request.param)
    yield request.param
    native.use_isa(before)


@pytest.fixture(autouse=True)
def _reference():
    use_backend("numpy")


def multiply(weight, tiles, x, *, use_panel=False, step=4):
    out = np.empty((len(x), 16 * len(tiles)), np.float32)
    native.int8_matmul(out, x, tiles, weight.dtype.gguf_id, use_panel, step)
    return out[:, : weight.shape[0]]


def decode(weight, tiles, first, last):
    out = np.empty((len(tiles), last - first, 16), np.float32)
    native.int8_decode(out, tiles, weight.dtype.gguf_id, first, last)
    return out.swapaxes(1, 2).reshape(-1, last - first)[: weight.shape[0]]


@pytest.mark.parametrize("name", FORMATS)
def test_pack_gives_the_bytes_of_the_numpy_layout(isa, name):
    weight = random_weight(np.random.default_rng(1), DTYPES[name], 21, 512)
    expected = pack(weight.dtype, weight.blocks)
    tiles = np.full_like(expected, 7)
    native.int8_pack(tiles, weight.blocks, weight.dtype.gguf_id)
    np.testing.assert_array_equal(tiles, expected)


@pytest.mark.parametrize("make", [edge_weight, lambda rng, d: random_weight(rng, d, 33, 512)])
@pytest.mark.parametrize("name", FORMATS)
def test_decode_equals_dequantize_to_the_bit(isa, name, make):
    weight = make(np.random.default_rng(2), DTYPES[name])
    tiles = pack(weight.dtype, weight.blocks)
    with np.errstate(all="ignore"):
        expected = ops.dequantize(weight)
    num_columns = weight.shape[1]
    for first, last in ((0, num_columns), (32, 64), (num_columns - 96, num_columns)):
        np.testing.assert_array_equal(decode(weight, tiles, first, last), expected[:, first:last])


@pytest.mark.parametrize("name", FORMATS)
def test_products_lie_within_rounding_of_exact_sums(isa, name):
    rng = np.random.default_rng(3)
    weight = random_weight(rng, DTYPES[name], 35, 1536)
    x = rng.standard_normal((5, 1536)).astype(np.float32)
    got = multiply(weight, pack(weight.dtype, weight.blocks), x)
    codes, scales = ops.quantize_q8_rows(x)
    rounded = codes.astype(np.float64) * np.repeat(scales, 32, axis=1)
    values = ops.dequantize(weight, dtype="f64")
    sizes = np.abs(rounded) @ np.abs(values).T
    assert (np.abs(got - rounded @ values.T) <= 1e-6 * sizes).all()
    np.testing.assert_allclose(got, ops.quant_linear(x, weight, act="q8"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("name", FORMATS)
def test_extreme_codes_do_not_overflow(isa, name, byte, sign):
    weight = random_weight(np.random.default_rng(4), DTYPES[name], 16, 256)
    scales = weight.blocks.copy()
    weight.blocks[:] = byte
    for field in FIELDS[name][: 2 if name.endswith(("1", "4_k", "5_k")) else 1]:
        size = DTYPES[name].block_bytes
        for start in range(field.offset, weight.blocks.shape[1], size):
            span = slice(start, start + field.num_bytes)
            weight.blocks[:, span] = scales[:, span]
    x = np.full((4, 256), sign, np.float32)
    tiles = pack(weight.dtype, weight.blocks)
    expected = ops.quant_linear(x, weight, act="q8")
    for use_panel in (False, True):
        got = multiply(weight, tiles, x, use_panel=use_panel)
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_special_scales_and_activations_give_what_the_reference_gives(isa, name):
    weight = edge_weight(np.random.default_rng(5), DTYPES[name])
    x = np.random.default_rng(6).standard_normal((4, 256)).astype(np.float32)
    x[1, 40] = np.nan
    x[2, 100] = np.inf
    x[3] = 0
    with np.errstate(all="ignore"):
        expected = ops.quant_linear(x, weight, act="q8")
    tiles = pack(weight.dtype, weight.blocks)
    for use_panel in (False, True):
        got = multiply(weight, tiles, x, use_panel=use_panel)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("num_columns", [256, 1536])
@pytest.mark.parametrize("name", FORMATS)
def test_bits_do_not_depend_on_rows_path_or_level(name, num_columns):
    rng = np.random.default_rng(7)
    weight = random_weight(rng, DTYPES[name], 40, num_columns)
    tiles = pack(weight.dtype, weight.blocks)
    x = rng.standard_normal((11, num_columns)).astype(np.float32)
    before = native.isa()
    results = []
    for level in ISAS:
        native.use_isa(level)
        for step in (1, 2, 4):
            for use_panel in (False, True):
                results.append(multiply(weight, tiles, x, use_panel=use_panel, step=step))
    native.use_isa(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_quantized_rows_equal_the_reference_to_the_bit(isa, name):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((9, 320)) * np.exp(rng.uniform(-9, 9, (9, 1)))
    x[0, :32], x[1, 5], x[2, 70], x[3, 100] = 0, np.nan, np.inf, -np.inf
    x[4, :64] = np.arange(64) - 31.5
    x[5] *= 2.0**-100
    x[6] *= 2.0**-120
    with np.errstate(all="ignore"):
        x = x.astype(DTYPES[name].numpy)
        expected = ops.quantize_q8_rows(x)
    codes, scales = np.empty_like(expected[0]), np.empty_like(expected[1])
    native.quantize_q8_rows(codes, scales, x)
    np.testing.assert_array_equal(codes, expected[0])
    np.testing.assert_array_equal(scales, expected[1])


def test_a_weight_of_one_row_fills_a_tile():
    weight = QuantTensor(DTYPES["q8_0"], (1, 32), np.zeros((1, 34), np.uint8))
    assert multiply(weight, pack(weight.dtype, weight.blocks), np.ones((1, 32), np.float32)) == 0
