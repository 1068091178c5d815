"""packed_linear and prepack_weight on the reference: layouts that only move bytes, and refusals."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.dispatch.backend import Backend
from pyvt.errors import ConfigError, DTypeError, ShapeError
from pyvt.ops import packed
from pyvt.ops.packed_layouts import LAYOUTS, pack_tiles, unpack_tiles
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.tensor.stored import Stored, stored_rows
from pyvt.testing.random_blocks import random_weight

PLAIN = np.random.default_rng(0).standard_normal((20, 8), np.float32)
IDS = np.array([19, 0])
X = np.random.default_rng(1).standard_normal((3, 8), np.float32)


def _stored(name: str, num_rows: int, columns: int, seed: int = 0) -> Stored:
    """Any bytes as a weight of the dtype; its values do not matter."""
    dtype, rng = DTYPES[name], np.random.default_rng(seed)
    data = rng.integers(0, 256, (num_rows, dtype.row_bytes(columns)), np.uint8)
    if dtype.numpy is None:
        return QuantTensor(dtype, (num_rows, columns), data)
    return data.reshape(-1).view(dtype.numpy).reshape(num_rows, columns)


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(num_rows=st.integers(0, 70), columns=st.integers(0, 5), cut=st.integers(0, 4))
def test_unpack_of_pack_gives_any_bytes_back(
    name: str, num_rows: int, columns: int, cut: int
) -> None:
    size = DTYPES[name].block_size
    weight = _stored(name, num_rows, max(columns, int(size > 1)) * size)

    tiles = pack_tiles(weight)

    first = min(cut, tiles.num_tiles)
    back = unpack_tiles(tiles, first, tiles.num_tiles)
    np.testing.assert_array_equal(stored_rows(back), stored_rows(weight)[first * 16 :])


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_beyond_the_last_are_zero_bytes(name: str) -> None:
    columns = DTYPES[name].block_size * 2
    whole = pack_tiles(_stored(name, 16, columns)).data.copy()
    rows = stored_rows(_stored(name, 16, columns)).copy()
    rows[5:] = 0

    short = pack_tiles(_stored(name, 5, columns)).data

    assert short.size == whole.size
    dtype = DTYPES[name]
    padded = (
        QuantTensor(dtype, (16, columns), rows)
        if dtype.numpy is None
        else rows.reshape(-1).view(dtype.numpy).reshape(16, columns)
    )
    np.testing.assert_array_equal(short, pack_tiles(padded).data)


def test_words_of_two_halves_lie_row_by_row() -> None:
    weight = np.arange(3 * 3, dtype=np.float16).reshape(3, 3)

    tile = pack_tiles(weight).data.view(np.float16).reshape(2, 16, 2)

    assert tile[0, :3].tolist() == [[0, 1], [3, 4], [6, 7]]
    assert tile[1, :3].tolist() == [[2, 0], [5, 0], [8, 0]]
    assert not tile[:, 3:].any()


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_linear_is_the_product_with_the_stored_weight(name: str) -> None:
    rng = np.random.default_rng(2)
    dtype = DTYPES[name]
    x, bias = rng.standard_normal((5, 512), np.float32), rng.standard_normal(600, np.float32)
    if dtype.numpy is None:
        weight: Any = random_weight(rng, dtype, 600, 512)
        for act in ("none", "q8") if dtype.has_codes else ("none",):
            want = ops.quant_linear(x, weight, bias, act=act)
            got = ops.packed_linear(x, pack_tiles(weight), bias, act=act)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        weight = rng.standard_normal((600, 512)).astype(dtype.numpy)
        got = ops.packed_linear(x, pack_tiles(weight), bias)
        np.testing.assert_allclose(got, ops.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_embedding_has_the_bits_of_the_stored_rows(name: str) -> None:
    rng, dtype = np.random.default_rng(3), DTYPES[name]
    weight: Any = (
        random_weight(rng, dtype, 40, 256)
        if dtype.numpy is None
        else rng.standard_normal((40, 255)).astype(dtype.numpy)
    )
    input_ids = np.array([39, 0, 15, 16, 39, 7], np.int32)

    for to in (None, "f32", "bf16"):
        got = ops.packed_embedding(input_ids, pack_tiles(weight), dtype=to)
        want = ops.embedding(input_ids, weight, dtype=to)
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes()


def test_prepack_on_the_reference_keeps_a_weight_and_joins_parts() -> None:
    assert ops.prepack_weight(PLAIN) is PLAIN
    np.testing.assert_array_equal(ops.prepack_weight(PLAIN[:7], PLAIN[7:]), PLAIN)


def test_prepack_of_stacks_keeps_the_order_of_their_matrices() -> None:
    stack = PLAIN.reshape(5, 4, 8)

    np.testing.assert_array_equal(ops.prepack_weight(stack[:2], stack[2:]), stack)


@pytest.mark.parametrize("name", ["bf16", "q8_0"])
def test_tiles_of_a_stack_are_those_of_each_matrix(name: str) -> None:
    columns = DTYPES[name].block_size * 2
    rows = _stored(name, 3 * 17, columns)
    plain = isinstance(rows, np.ndarray)
    stack = (
        rows.reshape(3, 17, columns)
        if plain
        else QuantTensor(rows.dtype, (3, 17, columns), rows.blocks.reshape(3, 17, -1))
    )

    packed_stack = pack_tiles(stack)

    assert packed_stack.shape == (3, 17, columns)
    for i in range(3):
        want = rows[17 * i : 17 * i + 17] if plain else rows.rows(slice(17 * i, 17 * i + 17))
        got = packed_stack.matrix(i)
        assert got.data.tobytes() == pack_tiles(want).data.tobytes()


def test_prepack_asks_the_selected_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Stored]] = []

    def prepack(parts: Sequence[Stored]) -> PackedTensor:
        asked.append(parts)
        return pack_tiles(PLAIN)

    backend = Backend(name="fast", prepack=prepack)
    monkeypatch.setattr(packed, "selected_backend", lambda: backend)

    assert isinstance(ops.prepack_weight(PLAIN[:7], PLAIN[7:]), PackedTensor)
    assert [len(part) for part in asked[0]] == [7, 13]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ops.prepack_weight(PLAIN, PLAIN.astype(np.float16)),
            DTypeError,
            "parts: expected one dtype, got [f32, f16]",
        ),
        (lambda: ops.prepack_weight(PLAIN, PLAIN[:, :4]), ShapeError, "parts: expected [N, K]"),
        (lambda: ops.prepack_weight(PLAIN[0]), ShapeError, "parts: expected [N, K]"),
        (lambda: ops.prepack_weight(PLAIN[None], PLAIN), ShapeError, "parts: expected [N, K]"),
        (lambda: ops.packed_linear(X, PLAIN), DTypeError, "expected a PackedTensor, got ndarray"),
        (
            lambda: ops.packed_embedding(IDS, PLAIN),
            DTypeError,
            "[packed_embedding] weight: expected a PackedTensor, got ndarray",
        ),
        (
            lambda: ops.packed_embedding(np.array([0, 20]), pack_tiles(PLAIN)),
            ShapeError,
            "input_ids: expected values in [0, 20), got 20",
        ),
        (
            lambda: ops.packed_embedding(X[0], pack_tiles(PLAIN)),
            DTypeError,
            "input_ids: expected i32|i64, got float32",
        ),
        (
            lambda: ops.packed_embedding(IDS, pack_tiles(PLAIN), dtype="i8"),
            DTypeError,
            "dtype: expected f64|f32|f16|bf16, got i8",
        ),
        (
            lambda: ops.packed_embedding(IDS, pack_tiles(PLAIN), out=X),
            ShapeError,
            "out: expected shape (2, 8)",
        ),
        (
            lambda: ops.packed_linear(X[:, :3], pack_tiles(PLAIN)),
            ShapeError,
            "weight: expected K=3, got 8",
        ),
        (
            lambda: ops.packed_linear(X, pack_tiles(PLAIN), X[0]),
            ShapeError,
            "bias: expected N=20, got 8",
        ),
        (
            lambda: ops.packed_linear(X, pack_tiles(PLAIN), act="q8"),
            ConfigError,
            "act: expected none for a weight in f32, got 'q8'",
        ),
        (
            lambda: ops.packed_linear(X, pack_tiles(PLAIN), act="q4"),
            ConfigError,
            "act: 'q4' is unknown; valid names: none, q8",
        ),
        (
            lambda: ops.packed_linear(X, pack_tiles(PLAIN), out=X),
            ShapeError,
            "out: expected shape (3, 20)",
        ),
        (
            lambda: ops.packed_linear(
                X, PackedTensor(DTYPES["f32"], (20, 8), "tile16", np.zeros(2000, np.uint8))
            ),
            ShapeError,
            "weight: expected 2 tiles of 512 bytes, got 2000 bytes",
        ),
    ],
)
def test_packed_bad_argument_is_refused(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        call()

    assert text in str(caught.value)
