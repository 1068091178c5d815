"""Every op of the CUDA backend equals the reference; on the emulator a simulated result."""

from typing import Any

import pytest

from pyvt.dispatch import use_backend
from pyvt.errors import UnsupportedError
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case, run_case_on
from pyvt.testing.tolerance import compare
from tests.backends.cuda.under_test import IS_THERE, NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

# f64 and casts from fp8 are the reference's.
WITHOUT_KERNELS = ("float64", "float8")

OP_DTYPES = {op: text.split() for op, text in native().OPS.items()} if IS_THERE else {}

CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in ALL_CASES
    for dtype in case.dtypes
    if dtype in OP_DTYPES.get(case.op, [])
]


def outputs_on_device(case: OpCase, dtype: str) -> dict[str, Any]:
    """The outputs of a case; it is skipped where an argument has a dtype without kernels."""
    try:
        return run_case_on(native(), case, case.inputs(dtype))
    except UnsupportedError as error:
        if not any(name in str(error) for name in WITHOUT_KERNELS):
            raise
        pytest.skip(f"an argument has a dtype without kernels: {error}")


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_device_op_equals_the_reference(case: OpCase, dtype: str) -> None:
    use_backend("numpy")
    want = run_case(case, case.inputs(dtype))
    use_backend(NAME)

    got = outputs_on_device(case, dtype)

    assert got.keys() == want.keys()
    for name in want:
        difference = compare(got[name], want[name], case.op_class, dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


LINEAR_CASES = [param for param in CASES if param.values[0].op == "linear"]


@pytest.mark.parametrize(("case", "dtype"), LINEAR_CASES)
def test_products_without_cublas_equal_the_reference(case: OpCase, dtype: str) -> None:
    use_backend("numpy")
    want = run_case(case, case.inputs(dtype))
    use_backend(NAME)
    native().use_cublas(False)

    try:
        got = outputs_on_device(case, dtype)
    finally:
        native().use_cublas(True)

    difference = compare(got["out"], want["out"], case.op_class, dtype)
    assert difference.is_within, difference.reason
