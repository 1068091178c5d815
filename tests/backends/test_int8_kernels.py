"""The int8 kernels of block formats: exact integers, every code and scale, one set of bits."""

from collections.abc import Iterator

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.ops import block_formats
from pyvt.ops.packed_int8 import FIELDS
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases.quant_gguf import edge_weight
from pyvt.testing.random_blocks import random_weight

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
else:
    ISAS = ["none"]

FORMATS = [name for name in FIELDS if DTYPES[name].has_codes]
# Up to 16 rows take the tile as it is packed; more of them unpack it into a panel.
BATCHES = (4, 20)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The CPU backend at one level, put back after the test."""
    use_backend("cpu")
    _native.use_isa(request.param)
    yield request.param
    _native.use_isa("auto")
    use_backend("numpy")


def reference(x: np.ndarray, weight: QuantTensor) -> np.ndarray:
    use_backend("numpy")
    with np.errstate(all="ignore"):
        result = ops.quant_linear(x, weight, act="q8")
    use_backend("cpu")
    return result


def multiply(x: np.ndarray, weight: QuantTensor, act: str = "q8") -> np.ndarray:
    return ops.packed_linear(x, ops.prepack_weight(weight), act=act)


@pytest.mark.parametrize("name", FIELDS)
def test_decoded_tile_equals_dequantize_to_the_bit(isa: str, name: str) -> None:
    weight = edge_weight(np.random.default_rng(2), DTYPES[name])

    got = multiply(np.eye(weight.shape[1], dtype=np.float32), weight, act="none").T

    with np.errstate(all="ignore"):
        want = ops.dequantize(weight)
    is_finite = np.isfinite(want).all(axis=1)
    assert is_finite.sum() >= 4
    np.testing.assert_array_equal(got[is_finite], want[is_finite])
    assert not np.isfinite(got[~is_finite]).all(axis=1).any()


@pytest.mark.parametrize("num_rows", [1, 6])
@pytest.mark.parametrize("name", ["fp8_g128", "fp8_g32"])
def test_every_fp8_code_is_read_by_few_rows_as_by_dequantize(
    isa: str, name: str, num_rows: int
) -> None:
    dtype = DTYPES[name]
    blocks = random_weight(np.random.default_rng(4), dtype, 18, 256).blocks.copy()
    fields = blocks.reshape(-1, dtype.block_bytes)
    codes = np.arange(18 * 256).astype(np.uint8)
    fields[:, 4:] = np.where(codes & 127 == 127, 8, codes).reshape(len(fields), -1)
    fields[0, 7] = 127
    weight = QuantTensor(dtype, (18, 256), blocks)
    eye = np.eye(256, dtype=np.float32)

    got = [multiply(eye[i : i + num_rows], weight, act="none") for i in range(0, 256, num_rows)]

    want = ops.dequantize(weight)
    assert np.isnan(want).sum() == 1
    want[np.isnan(want).any(axis=1)] = np.nan
    np.testing.assert_array_equal(np.concatenate(got).T, want)


@pytest.mark.parametrize("num_rows", BATCHES)
@pytest.mark.parametrize("name", FORMATS)
def test_products_lie_within_rounding_of_exact_sums(isa: str, name: str, num_rows: int) -> None:
    rng = np.random.default_rng(3)
    weight = random_weight(rng, DTYPES[name], 35, 1536)
    x = rng.standard_normal((num_rows, 1536), np.float32)

    got = multiply(x, weight)

    codes, scales = ops.quantize_q8_rows(x)
    rounded = codes.astype(np.float64) * np.repeat(scales, 32, axis=1)
    values = ops.dequantize(weight, dtype="f64")
    sizes = np.abs(rounded) @ np.abs(values).T
    assert (np.abs(got - rounded @ values.T) <= 1e-6 * sizes).all()


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("name", FORMATS)
def test_largest_codes_do_not_overflow(isa: str, name: str, byte: int, sign: int) -> None:
    weight = random_weight(np.random.default_rng(4), DTYPES[name], 16, 256)
    blocks = weight.blocks.reshape(16, -1, DTYPES[name].block_bytes)
    fields = blocks.view(block_formats.FORMATS[name].layout)
    names = ("d", "dmin", "m", "e", "scale")
    kept = {key: fields[key].copy() for key in names if key in fields.dtype.names}
    blocks[:] = byte
    for key, scale in kept.items():
        fields[key] = scale
    if "raised" in fields.dtype.names:
        fields["raised"] = np.minimum(fields["raised"], 16)

    for num_rows in BATCHES:
        x = np.full((num_rows, 256), sign, np.float32)
        np.testing.assert_allclose(multiply(x, weight), reference(x, weight), rtol=1e-5)


@pytest.mark.parametrize("num_rows", BATCHES)
@pytest.mark.parametrize("name", FORMATS)
def test_special_scales_are_finite_where_the_reference_is(
    isa: str, name: str, num_rows: int
) -> None:
    weight = edge_weight(np.random.default_rng(5), DTYPES[name])
    x = np.random.default_rng(6).standard_normal((num_rows, 256), np.float32)
    x[1, 40], x[2, 100], x[3] = np.nan, np.inf, 0

    got = multiply(x, weight)

    want = reference(x, weight)
    is_finite = np.isfinite(want)
    # Infinity or NaN: that depends on where a sum overflows, which fused steps and sums of 32
    # columns in place of 16 move.
    np.testing.assert_array_equal(np.isfinite(got), is_finite)
    # Sums of a large scale cancel: an error is measured against the largest sum of the output.
    sizes = np.max(np.abs(want), axis=0, initial=1, where=is_finite)
    got, want = (np.where(is_finite, array, 0) / sizes for array in (got, want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_columns", [256, 1536])
@pytest.mark.parametrize("name", FORMATS)
def test_int8_product_has_the_same_bits_on_every_level(name: str, num_columns: int) -> None:
    rng = np.random.default_rng(7)
    weight = random_weight(rng, DTYPES[name], 40, num_columns)
    x = rng.standard_normal((23, num_columns), np.float32)
    use_backend("cpu")
    results = set()
    for level in ISAS:
        _native.use_isa(level)
        results.add(multiply(x, weight).tobytes())
    _native.use_isa("auto")
    use_backend("numpy")

    assert len(results) == 1


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_quantized_rows_equal_the_reference_to_the_bit(isa: str, name: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((9, 320)) * np.exp(rng.uniform(-9, 9, (9, 1)))
    x[0, :32], x[1, 5], x[2, 70], x[3, 100] = 0, np.nan, np.inf, -np.inf
    x[4, :64] = np.arange(64) - 31.5
    x[5] *= 2.0**-100
    x[6] *= 2.0**-120
    with np.errstate(all="ignore"):
        x = x.astype(DTYPES[name].numpy)
        use_backend("numpy")
        want = ops.quantize_q8_rows(x)
    use_backend("cpu")

    codes, scales = ops.quantize_q8_rows(x)

    np.testing.assert_array_equal(codes, want[0])
    np.testing.assert_array_equal(scales, want[1])
