"""Every OpCase that a native kernel serves, on every level of the CPU, against the reference."""

from collections.abc import Iterator

import pytest

from pyvt import backends
from pyvt.dispatch import get_op, undeclared_kernels, use_backend
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case
from pyvt.testing.tolerance import compare

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
    NATIVE_DTYPES = {op: text.split() for op, text in _native.OPS.items()}
else:
    ISAS, NATIVE_DTYPES = ["none"], {}

CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in ALL_CASES
    for dtype in case.dtypes
    if dtype in NATIVE_DTYPES.get(case.op, [])
]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """The backend selected, with all that a test forces of it undone behind it."""
    use_backend("cpu")
    yield
    use_backend("numpy")
    _native.use_isa("auto")
    _native.set_num_threads(0)


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_native_op_equals_the_reference_on_every_level(case: OpCase, dtype: str) -> None:
    use_backend("numpy")
    want = run_case(case, case.inputs(dtype))
    use_backend("cpu")
    num_reference_calls = get_op(case.op).num_reference_calls

    for isa in ISAS:
        _native.use_isa(isa)
        got = run_case(case, case.inputs(dtype))

        if get_op(case.op).num_reference_calls != num_reference_calls:
            pytest.skip("the case holds a dtype that the reference serves, such as f64")
        assert got.keys() == want.keys()
        for name in want:
            difference = compare(got[name], want[name], case.op_class, dtype)
            assert difference.is_within, f"{isa} {name}: {difference.reason}"


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_native_op_gives_the_same_bits_on_any_number_of_threads(case: OpCase, dtype: str) -> None:
    results = []
    for count in (1, 2, 3):
        _native.set_num_threads(count)
        results.append(run_case(case, case.inputs(dtype)))

    for name, array in results[0].items():
        assert [other[name].tobytes() for other in results[1:]] == [array.tobytes()] * 2


def test_every_native_kernel_has_a_declared_op() -> None:
    assert undeclared_kernels() == ()
