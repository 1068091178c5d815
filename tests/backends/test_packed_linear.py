"""Linear layers of the CPU backend: one set of bits for every layout, batch, thread and kernel."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import get_op, use_backend
from pyvt.errors import KernelError
from pyvt.ops.packed_layouts import LAYOUTS, pack_tiles, unpack_tiles
from pyvt.tensor.dtype import DTYPES, DType
from pyvt.tensor.packed_tensor import TILE16, PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
    NATIVE = [name for name in LAYOUTS if name in _native.OPS["packed_linear"].split()]
else:
    ISAS, NATIVE = ["none"], ["f32"]

BF16 = ml_dtypes.bfloat16
PLAIN = [name for name in NATIVE if not DTYPES[name].is_block]
# Every step of rows of direct and panel kernels, one and several blocks of rows.
NUM_ROWS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 64, 263, 265, 600)
CALLS = [
    pytest.param(name, act, id=f"{name}-{act}")
    for name in NATIVE
    for act in (("none", "q8") if DTYPES[name].is_block and DTYPES[name].has_codes else ("none",))
]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """The CPU backend, put back with its level and its threads."""
    use_backend("cpu")
    yield
    use_backend("numpy")
    _native.use_isa("auto")
    _native.set_num_threads(0)


def make_weight(rng: np.random.Generator, dtype: DType, num_rows: int, columns: int) -> Any:
    """Return a stored weight whose products are near 1."""
    size = columns**-0.5
    if dtype.numpy is None:
        return random_weight(rng, dtype, num_rows, columns, magnitude=size)
    return (rng.standard_normal((num_rows, columns)) * size).astype(dtype.numpy)


def unpacked_linear(x: np.ndarray, weight: Any, bias: Any, act: str) -> np.ndarray:
    if isinstance(weight, QuantTensor):
        return ops.quant_linear(x, weight, bias, act=act)
    return ops.linear(x, weight, bias)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("num_rows", [1, 16, 17, 4097])
def test_native_packing_equals_numpy_and_comes_back(name: str, num_rows: int) -> None:
    rng = np.random.default_rng(0)
    columns = (256, 768) if DTYPES[name].is_block else (1, 7, 8, 33)
    for num_columns in columns:
        weight = make_weight(rng, DTYPES[name], num_rows, num_columns)

        packed = ops.prepack_weight(weight)

        assert isinstance(packed, PackedTensor)
        np.testing.assert_array_equal(packed.data, pack_tiles(weight).data)
        back = unpack_tiles(packed, 0, packed.num_tiles)
        stored = [getattr(w, "blocks", w).view(np.uint8) for w in (back, weight)]
        np.testing.assert_array_equal(*stored)


@pytest.mark.parametrize("name", NATIVE)
def test_parts_are_packed_as_one_weight(name: str) -> None:
    rng = np.random.default_rng(1)
    parts = [make_weight(rng, DTYPES[name], n, 256) for n in (20, 1, 13)]

    packed = ops.prepack_weight(*parts)

    use_backend("numpy")
    whole = ops.prepack_weight(*parts)
    assert isinstance(packed, PackedTensor)
    assert not isinstance(whole, PackedTensor)
    np.testing.assert_array_equal(packed.data, pack_tiles(whole).data)


@pytest.mark.parametrize(("name", "act"), CALLS)
@pytest.mark.parametrize("isa", ISAS)
def test_row_has_the_same_bits_in_any_batch_on_any_threads(name: str, act: str, isa: str) -> None:
    _native.use_isa(isa)
    rng = np.random.default_rng(2)
    columns = 768 if DTYPES[name].is_block else 1035
    weight = make_weight(rng, DTYPES[name], 50 if isa == "scalar" else 66, columns)
    packed, bias = ops.prepack_weight(weight), rng.standard_normal(weight.shape[0], np.float32)
    batches = NUM_ROWS if isa != "scalar" else NUM_ROWS[:-4]
    x = rng.standard_normal((batches[-1], columns), np.float32)

    want = np.concatenate([ops.packed_linear(row[None], packed, bias, act=act) for row in x])

    for num_rows in batches:
        for num_threads in (1, 3):
            _native.set_num_threads(num_threads)
            got = ops.packed_linear(x[-num_rows:], packed, bias, act=act)
            np.testing.assert_array_equal(got.view("u4"), want[-num_rows:].view("u4"))
        got = unpacked_linear(x[-num_rows:], weight, bias, act)
        np.testing.assert_array_equal(got.view("u4"), want[-num_rows:].view("u4"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [0, 1, 2, 255, 1035])
def test_rows_of_bf16_have_the_same_bits_in_any_batch_and_layout(isa: str, columns: int) -> None:
    _native.use_isa(isa)
    rng = np.random.default_rng(8)
    weight = make_weight(rng, DTYPES["bf16"], 37, columns) if columns else np.zeros((37, 0), BF16)
    packed, bias = ops.prepack_weight(weight), rng.standard_normal(37).astype(BF16)
    x = rng.standard_normal((300, columns)).astype(BF16)
    x[1, columns // 2 :] = np.nan

    want = np.concatenate([ops.packed_linear(row[None], packed, bias) for row in x]).view("u2")

    apart = np.zeros((300, columns, 2), BF16)
    apart[:, :, 1] = x
    for num_rows in (2, 3, 7, 8, 9, 41, 265, 300):
        for rows in (x[:num_rows], apart[:num_rows, :, 1]):
            got = ops.packed_linear(rows, packed, bias)
            np.testing.assert_array_equal(got.view("u2"), want[:num_rows])
        got = ops.linear(x[:num_rows], weight, bias)
        np.testing.assert_array_equal(got.view("u2"), want[:num_rows])
    if columns:
        assert np.isnan(want.view(BF16)[1].astype(np.float32)).all()
        assert np.isfinite(np.delete(want.view(BF16), 1, 0).astype(np.float32)).all()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_product_has_the_same_bits_on_every_level(name: str) -> None:
    rng = np.random.default_rng(3)
    packed = ops.prepack_weight(make_weight(rng, DTYPES[name], 21, 77))
    x = rng.standard_normal((9, 77), np.float32)

    results = []
    for isa in ISAS:
        _native.use_isa(isa)
        results.append(ops.packed_linear(x, packed).tobytes())

    assert len(set(results)) == 1


@pytest.mark.parametrize(("name", "act"), CALLS)
@pytest.mark.parametrize(
    ("x_name", "shape"), [("bf16", (1, 256)), ("f32", (9, 512)), ("f16", (40, 1024))]
)
def test_packed_linear_equals_the_reference_on_every_level(
    name: str, act: str, x_name: str, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(DTYPES[x_name].numpy)
    weight = make_weight(rng, DTYPES[name], 37, shape[1])
    bias = rng.standard_normal(37).astype(x.dtype)
    packed = ops.prepack_weight(weight)
    use_backend("numpy")
    want = ops.packed_linear(x, packed, bias, act=act)
    use_backend("cpu")

    for isa in ISAS:
        _native.use_isa(isa)
        got = ops.packed_linear(x, packed, bias, act=act)

        difference = compare(got, want, "linear", x_name)
        assert difference.is_within, f"{isa}: {difference.reason}"


@pytest.mark.parametrize(("name", "act"), CALLS)
@pytest.mark.parametrize("num_rows", [3, 40])
def test_not_a_number_stays_in_its_row(name: str, act: str, num_rows: int) -> None:
    rng = np.random.default_rng(5)
    packed = ops.prepack_weight(make_weight(rng, DTYPES[name], 18, 256))
    x = rng.standard_normal((num_rows, 256), np.float32)
    want = ops.packed_linear(x, packed, act=act)
    x[1, 200], x[2, 3] = np.nan, np.inf

    got = ops.packed_linear(x, packed, act=act)

    assert not np.isfinite(got[1:3]).any()
    np.testing.assert_array_equal(np.delete(got, (1, 2), 0), np.delete(want, (1, 2), 0))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("num_rows", [2, 40])
def test_weight_that_is_not_finite_stays_in_its_output(name: str, num_rows: int) -> None:
    rng = np.random.default_rng(6)
    weight = make_weight(rng, DTYPES[name], 18, 33)
    x = rng.standard_normal((num_rows, 33), np.float32)
    want = ops.linear(x, weight)
    weight[17, 32], weight[3, 0] = np.nan, -np.inf

    got = ops.packed_linear(x, ops.prepack_weight(weight))

    assert not np.isfinite(got[:, [3, 17]]).any()
    kept = [n for n in range(18) if n not in (3, 17)]
    np.testing.assert_array_equal(got[:, kept], want[:, kept])


@pytest.mark.parametrize("name", PLAIN)
def test_linear_of_strided_arrays_equals_that_of_copies(name: str) -> None:
    rng = np.random.default_rng(7)
    dtype = DTYPES[name].numpy
    x = rng.standard_normal((3, 8, 99)).astype(dtype)[::2, 1::2, ::3]
    weight = rng.standard_normal((66, 34)).astype(dtype).T[::-1, ::2]
    num_reference_calls = get_op("linear").num_reference_calls
    bias, buffer = rng.standard_normal(68).astype(dtype)[::2], np.zeros((2, 4, 34, 2), dtype)

    ops.linear(x, weight, bias, out=buffer[..., 1])

    np.testing.assert_array_equal(
        buffer[..., 1], ops.linear(x.copy(), weight.copy(), bias.copy()).view(dtype)
    )
    assert not buffer[..., 0].any()
    assert get_op("linear").num_reference_calls == num_reference_calls


def test_dtype_without_packer_stays_as_stored() -> None:
    wide = np.zeros((3, 4))

    assert ops.prepack_weight(wide) is wide


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (
            PackedTensor(DTYPES["bf16"], (5, 9), TILE16, np.zeros(999, np.uint8)),
            "1 tiles of 320 bytes, got 999",
        ),
        (PackedTensor(DTYPES["f32"], (40, 2), TILE16, np.zeros(999, np.uint8)), "3 tiles of 128"),
    ],
)
def test_packed_linear_wrong_number_of_bytes_is_refused(weight: PackedTensor, text: str) -> None:
    x = np.zeros((1, weight.shape[1]), np.float32)

    with pytest.raises(KernelError, match=r"^\[packed_linear\] weight: expected") as caught:
        ops.packed_linear(x, weight)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: _native.packed_linear(x, x, w, None, "none"),
        lambda x, w: _native.packed_linear(np.zeros((2, 5), "f4"), x[:, :3], w, None, "none"),
        lambda x, w: _native.packed_linear(np.zeros((1, 5), "f4"), x, w, None, "none"),
        lambda x, w: _native.packed_linear(np.zeros((2, 5), "f4"), x, w, np.zeros(4, "f4"), "none"),
        lambda x, w: _native.packed_linear(np.zeros((2, 5), "f4"), x, w, None, "q8"),
        lambda x, w: _native.packed_linear(np.zeros((2, 5)), x, w, None, "none"),
        lambda x, w: _native.linear(np.zeros((2, 5), "f4"), x, np.zeros(4, "f4"), None),
        lambda x, w: _native.linear(np.zeros((2, 5), "f4"), x, np.zeros((4, 4), "f4"), None),
        lambda x, w: _native.pack_tiles(np.zeros(64, "u1"), [np.zeros((5, 16), "u1")], 0, 4),
        lambda x, w: _native.pack_tiles(np.zeros(256, "u1"), [np.zeros((5, 15), "u1")], 0, 4),
        lambda x, w: _native.pack_tiles(np.zeros(256, "u1"), [np.zeros((5, 16), "u1")], 99, 4),
    ],
)
def test_native_call_out_of_contract_is_an_error(call: Any) -> None:
    weight = ops.prepack_weight(np.ones((5, 4), np.float32))

    with pytest.raises(KernelError):
        call(np.zeros((2, 4), np.float32), weight)


@pytest.mark.parametrize("act", ["Q8", "", "bogus"])
def test_unknown_act_is_an_error_of_every_native_product(act: str) -> None:
    x, out = np.zeros((2, 32), np.float32), np.zeros((2, 5), np.float32)
    weight = make_weight(np.random.default_rng(9), DTYPES["q8_0"], 5, 32)
    ids, shares = np.zeros((2, 1), np.int32), np.ones((2, 1), np.float32)
    stack = np.zeros((1, 32, 32), np.float32)

    for call in (
        lambda: _native.quant_linear(out, x, weight, None, act),
        lambda: _native.packed_linear(out, x, ops.prepack_weight(weight), None, act),
        lambda: _native.fused_experts(
            np.zeros_like(x), x, ids, shares, stack, stack, stack, None, None, None, act
        ),
    ):
        with pytest.raises(KernelError, match=f"act: expected none or q8, got {act}"):
            call()


def test_native_call_with_another_type_is_a_type_error() -> None:
    x = np.zeros((2, 4), ml_dtypes.bfloat16)

    with pytest.raises(TypeError):
        _native.packed_linear(np.zeros((2, 5), x.dtype), x, x, None, "none")
