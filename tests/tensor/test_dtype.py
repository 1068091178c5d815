"""The dtype table against gguf's own tables, and the ways to name a dtype."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest

from pyvt.errors import DTypeError
from pyvt.tensor.dtype import (
    BF16,
    DTYPES,
    F32,
    GGUF_BLOCKS,
    I32,
    Q4_K,
    Q8_0,
    DType,
    as_dtype,
    dtype_from_gguf,
    dtype_from_safetensors,
    dtype_named,
    dtype_of,
)
from pyvt.testing.docs_formats import formats_page

IN_GGUF = [pytest.param(d, id=d.name) for d in DTYPES.values() if d.gguf_id is not None]


@pytest.mark.parametrize("dtype", IN_GGUF)
def test_dtype_has_gguf_number_and_block(dtype: DType) -> None:
    qtype = gguf.GGMLQuantizationType[dtype.name.upper()]

    assert dtype.gguf_id == qtype.value
    assert (dtype.block_size, dtype.block_bytes) == gguf.GGML_QUANT_SIZES[qtype]
    assert dtype_from_gguf(qtype.value) is dtype


def test_block_formats_are_nineteen_in_order_of_number() -> None:
    numbers = [dtype.gguf_id for dtype in GGUF_BLOCKS]

    assert len(numbers) == 19
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("number", [-1, 4, 5, 19, 29, 34, 35, 1 << 31])
def test_dtype_from_gguf_unknown_number_is_none(number: int) -> None:
    assert dtype_from_gguf(number) is None


@pytest.mark.parametrize(
    ("name", "dtype"), [("BF16", BF16), ("F32", F32), ("I32", I32), ("F8_E8M0", None)]
)
def test_dtype_from_safetensors(name: str, dtype: DType | None) -> None:
    assert dtype_from_safetensors(name) is dtype


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ("bf16", BF16),
        (ml_dtypes.bfloat16, BF16),
        (np.dtype("f4"), F32),
        (np.int32, I32),
        (F32, F32),
    ],
)
def test_as_dtype_takes_name_numpy_dtype_or_dtype(given: object, dtype: DType) -> None:
    assert as_dtype(given) is dtype


def test_dtype_named_near_miss_is_suggested() -> None:
    with pytest.raises(DTypeError, match=r"'mxfp' is unknown; did you mean 'mxfp4'"):
        dtype_named("mxfp")


def test_dtype_of_unknown_array_names_the_known() -> None:
    with pytest.raises(DTypeError, match=r"expected one of f64, f32, .*, got complex64"):
        dtype_of(np.empty(1, np.complex64))


def test_row_bytes_counts_blocks() -> None:
    assert Q4_K.row_bytes(512) == 288
    assert Q8_0.row_bytes(0) == 0
    assert F32.row_bytes(3) == 12


def test_row_bytes_partial_block_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"\[q4_k\] row: .* multiple of 256 elements, got 576"):
        Q4_K.row_bytes(576)


def test_bits_per_element_counts_scales() -> None:
    assert Q4_K.bits_per_element == 4.5
    assert Q4_K.is_block
    assert not F32.is_block


def test_formats_page_is_fresh(repo: Path) -> None:
    assert (repo / "docs/reference/formats.md").read_text() == formats_page()
