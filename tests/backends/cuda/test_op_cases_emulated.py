"""Every op of the CUDA backend on its emulator equals the reference: a simulated result."""

import pytest

from pyvt import backends
from pyvt.dispatch import use_backend
from pyvt.errors import UnsupportedError
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case, run_case_on
from pyvt.testing.tolerance import compare

pytestmark = [pytest.mark.emulated]

if backends.why_not("cuda-emu") is None:
    from pyvt.backends.cuda import _native_emu

    OP_DTYPES = {op: text.split() for op, text in _native_emu.OPS.items()}
else:
    OP_DTYPES = {}

CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in ALL_CASES
    for dtype in case.dtypes
    if dtype in OP_DTYPES.get(case.op, [])
]


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_emulated_op_equals_the_reference(case: OpCase, dtype: str) -> None:
    use_backend("numpy")
    want = run_case(case, case.inputs(dtype))
    use_backend("cuda-emu")

    try:
        got = run_case_on(_native_emu, case, case.inputs(dtype))
    except UnsupportedError as error:
        pytest.skip(f"a dtype of the case has no kernel: {error}")

    assert got.keys() == want.keys()
    for name in want:
        difference = compare(got[name], want[name], case.op_class, dtype)
        assert difference.is_within, f"{name}: {difference.reason}"
