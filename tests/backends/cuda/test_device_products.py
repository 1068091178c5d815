"""Products of more rows than op cases have: every format, tile height and dtype of x."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.errors import KernelError
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases import OpCase, run_case, run_case_on
from pyvt.testing.op_cases.moe import experts_call
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare
from tests.backends.cuda.under_test import (
    IS_THERE,
    NAME,
    NEEDS_DEVICE,
    has_used_tensor_cores,
    native,
)

pytestmark = [NEEDS_DEVICE]

TEXT = native().OPS["quant_linear"] if IS_THERE else ""
FORMATS = [name for name in TEXT.split() if DTYPES[name].is_block]
COUNTED = [
    (name, act)
    for name in FORMATS
    for act in ("none", "q8")
    if act == "none" or DTYPES[name].has_codes
]


def test_every_block_format_has_kernels() -> None:
    assert set(FORMATS) == {name for name, dtype in DTYPES.items() if dtype.is_block}


def put(weight: QuantTensor) -> QuantTensor:
    return QuantTensor(weight.dtype, weight.shape, native().upload(weight.blocks))


def check_product(weight: QuantTensor, num_rows: int, dtype: str, act: str) -> None:
    """Compare a product with a bias on the device with the reference."""
    rng = np.random.default_rng(num_rows)
    plain = DTYPES[dtype].numpy
    assert plain is not None
    x = rng.standard_normal((num_rows, weight.shape[1])).astype(plain)
    bias = rng.standard_normal(weight.shape[0]).astype(plain)
    use_backend("numpy")
    want = ops.quant_linear(x, weight, bias, act=act)
    use_backend(NAME)

    given = native().upload(x), put(weight), native().upload(bias)
    got, has_used = has_used_tensor_cores(
        "quant_linear", lambda: ops.quant_linear(*given, act=act).numpy()
    )

    is_wanted = num_rows > 8 and (act == "q8" or dtype != "f32")
    assert has_used in (is_wanted, None)
    difference = compare(got, want, "linear", dtype)
    assert difference.is_within, difference.reason


@pytest.mark.parametrize(("name", "act"), COUNTED)
def test_tiles_of_every_format(name: str, act: str) -> None:
    weight = random_weight(np.random.default_rng(1), DTYPES[name], 70, 256)
    if act == "q8":
        check_product(weight, 19, "f32", act)
    else:
        check_product(weight, 19, "f32", act)
        check_product(weight, 19, "bf16", act)


@pytest.mark.parametrize("num_rows", [2, 5, 8, 9, 65])
@pytest.mark.parametrize(("name", "act"), [("q6_k", "q8"), ("q4_k", "none"), ("q4_k", "q8")])
def test_numbers_of_rows(num_rows: int, name: str, act: str) -> None:
    """More columns than a kernel for few rows has in shared memory, a last piece of them."""
    weight = random_weight(np.random.default_rng(2), DTYPES[name], 9, 2304, magnitude=0.02)
    check_product(weight, num_rows, "f32", act)


@pytest.mark.parametrize("name", ["q5_1", "q2_k", "nvfp4", "fp8_g32"])
def test_f16_is_split_without_loss(name: str) -> None:
    weight = random_weight(np.random.default_rng(3), DTYPES[name], 33, 256)
    check_product(weight, 12, "f16", "none")


# Tokens, experts of each, experts, H, I: tiles of 1, of 4 and of 64 rows.
HEIGHTS = {1: (5, 2, 7, 96, 64), 4: (20, 2, 16, 96, 64), 64: (41, 2, 4, 96, 64)}
EXPERTS = {
    "plain": ("bf16", "none"),
    "f16": ("f16", "none"),
    "f32": ("f32", "none"),
    "blocks": ("q8_0 q4_0 q5_1", "none"),
    "fp8": ("fp8_g32", "none"),
    "q8": ("q8_0 mxfp4 int4_g32", "q8"),
    "mixed": ("q8_0 bf16 q4_0", "q8"),
}


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize(("formats", "act"), EXPERTS.values(), ids=EXPERTS.keys())
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_experts_of_every_height(height: int, formats: str, act: str, dtype: str) -> None:
    make = experts_call(formats, HEIGHTS[height], act=act)
    case = OpCase(op="fused_experts", case_id=f"height_{height}", make=make)
    inputs: dict[str, Any] = case.inputs(dtype)
    use_backend("numpy")
    want = run_case(case, inputs)["out"]
    use_backend(NAME)

    got, has_used = has_used_tensor_cores(
        "fused_experts", lambda: run_case_on(native(), case, inputs)["out"]
    )

    if height != 64:
        assert not has_used
    elif act == "q8" or (dtype == "bf16" and formats not in ("f16", "f32")):
        assert has_used in (True, None)
    if act == "q8":
        op_class, bound = "experts_q8", "f32" if dtype == "f32" else "bf16"
    else:
        op_class, bound = "linear", dtype
    difference = compare(got, want, op_class, bound)
    assert difference.is_within, difference.reason


def test_blocks_at_odd_addresses_are_refused() -> None:
    weight = random_weight(np.random.default_rng(4), DTYPES["q4_k"], 4, 256)
    whole = native().upload(np.zeros((4, 145), np.uint8))
    use_backend(NAME)
    x = native().upload(np.ones((1, 256), np.float32))

    with pytest.raises(KernelError, match="expected addresses that are multiples of 16"):
        ops.quant_linear(x, QuantTensor(weight.dtype, weight.shape, whole[:, 1:]))
