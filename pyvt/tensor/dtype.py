"""Element types of tensors: plain dtypes that NumPy can hold, and packed block formats.

A *plain* dtype has a NumPy dtype (``ml_dtypes`` gives bf16 and fp8). A *block* format packs
``block_size`` elements into ``block_bytes`` bytes; it has no NumPy dtype and its data is a
``QuantTensor``. The formats of ``GGUF_BLOCKS`` lie so in files; those of ``SCALED_BLOCKS`` are what
quantized checkpoints of Hugging Face are laid out as at load, without loss. ``gguf_id`` is the type
number in a GGUF file, ``safetensors_name`` the spelling in a safetensors header; None where the
format does not occur there.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pyvt.errors import DTypeError, did_you_mean


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. Compared by identity; ``DTYPES`` holds all of them.

    ``has_codes``: whether the elements of a block format are small integers times a scale, so that
    products with int8 activations exist.
    """

    name: str
    block_size: int
    block_bytes: int
    numpy: "np.dtype[Any] | None" = None
    gguf_id: int | None = None
    safetensors_name: str | None = None
    has_codes: bool = True

    @property
    def is_block(self) -> bool:
        """Whether elements are packed into blocks."""
        return self.numpy is None

    @property
    def bits_per_element(self) -> float:
        """Storage bits of one element, scales included."""
        return self.block_bytes * 8 / self.block_size

    def row_bytes(self, num_elements: int) -> int:
        """Return the bytes of a row of ``num_elements``, a multiple of ``block_size``."""
        if num_elements % self.block_size:
            raise DTypeError(
                f"[{self.name}] row: expected a multiple of {self.block_size} elements, "
                f"got {num_elements}"
            )
        return num_elements // self.block_size * self.block_bytes

    def __repr__(self) -> str:
        return self.name


def _plain(name: str, numpy: Any, gguf_id: int | None, st_name: str | None) -> DType:
    dtype = np.dtype(numpy)
    return DType(name, 1, dtype.itemsize, dtype, gguf_id, st_name)


F64 = _plain("f64", np.float64, 28, "F64")
F32 = _plain("f32", np.float32, 0, "F32")
F16 = _plain("f16", np.float16, 1, "F16")
BF16 = _plain("bf16", ml_dtypes.bfloat16, 30, "BF16")
FP8_E4M3 = _plain("fp8_e4m3", ml_dtypes.float8_e4m3fn, None, "F8_E4M3")
FP8_E5M2 = _plain("fp8_e5m2", ml_dtypes.float8_e5m2, None, "F8_E5M2")
U64 = _plain("u64", np.uint64, None, "U64")
I64 = _plain("i64", np.int64, 27, "I64")
I32 = _plain("i32", np.int32, 26, "I32")
I16 = _plain("i16", np.int16, 25, "I16")
I8 = _plain("i8", np.int8, 24, "I8")
U8 = _plain("u8", np.uint8, None, "U8")
BOOL = _plain("bool", np.bool_, None, "BOOL")

Q4_0 = DType("q4_0", 32, 18, gguf_id=2)
Q4_1 = DType("q4_1", 32, 20, gguf_id=3)
Q5_0 = DType("q5_0", 32, 22, gguf_id=6)
Q5_1 = DType("q5_1", 32, 24, gguf_id=7)
Q8_0 = DType("q8_0", 32, 34, gguf_id=8)
Q2_K = DType("q2_k", 256, 84, gguf_id=10)
Q3_K = DType("q3_k", 256, 110, gguf_id=11)
Q4_K = DType("q4_k", 256, 144, gguf_id=12)
Q5_K = DType("q5_k", 256, 176, gguf_id=13)
Q6_K = DType("q6_k", 256, 210, gguf_id=14)
IQ2_XXS = DType("iq2_xxs", 256, 66, gguf_id=16)
IQ2_XS = DType("iq2_xs", 256, 74, gguf_id=17)
IQ3_XXS = DType("iq3_xxs", 256, 98, gguf_id=18)
IQ4_NL = DType("iq4_nl", 32, 18, gguf_id=20)
IQ3_S = DType("iq3_s", 256, 110, gguf_id=21)
IQ2_S = DType("iq2_s", 256, 82, gguf_id=22)
IQ4_XS = DType("iq4_xs", 256, 136, gguf_id=23)
MXFP4 = DType("mxfp4", 32, 17, gguf_id=39)
NVFP4 = DType("nvfp4", 64, 36, gguf_id=40)

INT4_G128 = DType("int4_g128", 128, 69)
INT4_G32 = DType("int4_g32", 32, 21)
INT8_G128 = DType("int8_g128", 128, 132)
INT8_G32 = DType("int8_g32", 32, 36)
NVFP4_G128 = DType("nvfp4_g128", 128, 76)
NVFP4_G32 = DType("nvfp4_g32", 32, 22)
FP8_G128 = DType("fp8_g128", 128, 132, has_codes=False)
FP8_G32 = DType("fp8_g32", 32, 36, has_codes=False)

FLOATS = (F64, F32, F16, BF16)
# What keys and values may be kept in; fp8 saturates at ±448 and has no scale.
KV_FLOATS = (*FLOATS, FP8_E4M3)
GGUF_BLOCKS = (
    *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
    *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
    *(IQ2_XXS, IQ2_XS, IQ3_XXS, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS),
    *(MXFP4, NVFP4),
)
SCALED_BLOCKS = (
    *(INT4_G128, INT4_G32, INT8_G128, INT8_G32),
    *(NVFP4_G128, NVFP4_G32, FP8_G128, FP8_G32),
)
BLOCK_FORMATS = (*GGUF_BLOCKS, *SCALED_BLOCKS)
DTYPES = {
    dtype.name: dtype
    for dtype in (*FLOATS, FP8_E4M3, FP8_E5M2, U64, I64, I32, I16, I8, U8, BOOL, *BLOCK_FORMATS)
}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype.numpy is not None}
_BY_GGUF_ID = {dtype.gguf_id: dtype for dtype in DTYPES.values() if dtype.gguf_id is not None}
_BY_SAFETENSORS = {d.safetensors_name: d for d in DTYPES.values() if d.safetensors_name}


def dtype_named(name: str) -> DType:
    """Return the dtype of that name. Raises DTypeError with a near miss for an unknown one."""
    if name not in DTYPES:
        raise DTypeError(f"[dtype] name: {name!r} is unknown; {did_you_mean(name, DTYPES)}")
    return DTYPES[name]


def as_dtype(dtype: Any) -> DType:
    """Return the DType that a name, a NumPy dtype or a DType stands for. Raises DTypeError."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return dtype_named(dtype)
    if not isinstance(dtype, (np.dtype, type)):  # NumPy takes None for f64
        raise DTypeError(f"[dtype] dtype: expected a dtype or its name, got {dtype!r}")
    return dtype_of(np.empty(0, dtype))


def dtype_of(array: "np.ndarray[Any, Any]") -> DType:
    """Return the dtype of a NumPy array. Raises DTypeError where pyvt has no name for it."""
    dtype = _BY_NUMPY.get(array.dtype)
    if dtype is None:
        known = ", ".join(d.name for d in _BY_NUMPY.values())
        raise DTypeError(f"[dtype] array: expected one of {known}, got {array.dtype}")
    return dtype


def dtype_from_gguf(gguf_id: int) -> DType | None:
    """Return the dtype with that GGUF type number, None for an unknown number."""
    return _BY_GGUF_ID.get(gguf_id)


def dtype_from_safetensors(name: str) -> DType | None:
    """Return the dtype with that safetensors spelling, None for an unknown one."""
    return _BY_SAFETENSORS.get(name)
