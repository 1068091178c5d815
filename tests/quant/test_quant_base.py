"""What becomes of a stored tensor at load."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.quant import QUANT_METHODS, WeightSettings, linear_method
from pyvt.tensor.dtype import BF16, F16, F32, F64, Q4_1, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight
from pyvt.weights.param import MATRIX, TABLE, VECTOR, Parameter, ParamSlot

PACKED = random_weight(np.random.default_rng(0), Q4_1, 3, 32)
HALF = np.random.default_rng(0).standard_normal((3, 32)).astype(BF16.numpy)


def _convert(tensor: Any, role: str, dtype: DType = F32, is_expanded: bool = True) -> Any:
    settings = WeightSettings(dtype=dtype, is_expanded=is_expanded)
    return settings.convert(tensor, Parameter(role, ParamSlot("weight", tensor.shape)))


@pytest.mark.parametrize(
    ("dtype", "wide"), [(F32, F32), (BF16, F32), (F16, F32), (F64, F64)], ids=str
)
def test_expanded_matrix_is_in_the_dtype_of_sums(dtype: DType, wide: DType) -> None:
    packed, half = _convert(PACKED, MATRIX, dtype), _convert(HALF, MATRIX, dtype)

    assert packed.dtype == half.dtype == wide.numpy
    np.testing.assert_array_equal(packed, ops.dequantize(PACKED, dtype=wide.name))
    np.testing.assert_array_equal(half, HALF.astype(wide.numpy))


@pytest.mark.parametrize("tensor", [PACKED, HALF], ids=["packed", "half"])
def test_matrix_stays_as_stored_unless_expanded(tensor: Any) -> None:
    assert _convert(tensor, MATRIX, is_expanded=False) is tensor


@pytest.mark.parametrize("tensor", [PACKED, HALF], ids=["packed", "half"])
def test_table_stays_as_stored(tensor: Any) -> None:
    assert _convert(tensor, TABLE) is tensor


def test_vector_is_always_widened() -> None:
    assert _convert(HALF[0], VECTOR, is_expanded=False).dtype == np.float32


def test_f32_matrix_is_not_copied() -> None:
    wide = HALF.astype(np.float32)

    assert np.shares_memory(_convert(wide, MATRIX), wide)


@pytest.mark.parametrize(
    ("weight", "name"), [(PACKED, "gguf"), (HALF, "unquantized")], ids=["packed", "half"]
)
def test_method_is_chosen_by_the_tensor(weight: Any, name: str) -> None:
    x = np.ones((2, 32), np.float32)

    method = linear_method(weight, WeightSettings(dtype=F32))

    assert type(method) is QUANT_METHODS[name]
    plain = ops.dequantize(weight) if isinstance(weight, QuantTensor) else weight.astype(x.dtype)
    np.testing.assert_allclose(method.apply(x, None), x @ plain.T, rtol=1e-5, atol=1e-6)
