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


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """One level of the CPU after the other, the backend selected."""
    _native.use_isa(request.param)
    use_backend("cpu")
    yield request.param
    use_backend("numpy")
    _native.use_isa("auto")


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_native_op_equals_the_reference(case: OpCase, dtype: str, isa: str) -> None:
    use_backend("numpy")
    want = run_case(case, case.inputs(dtype))
    use_backend("cpu")
    num_reference_calls = get_op(case.op).num_reference_calls

    got = run_case(case, case.inputs(dtype))

    if get_op(case.op).num_reference_calls != num_reference_calls:
        pytest.skip("the case holds a dtype that the reference serves, such as f64")
    assert got.keys() == want.keys()
    for name in want:
        difference = compare(got[name], want[name], case.op_class, dtype)
        assert difference.is_within, f"{isa} {name}: {difference.reason}"


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_native_op_gives_the_same_bits_on_any_number_of_threads(case: OpCase, dtype: str) -> None:
    use_backend("cpu")
    results = []
    for count in (1, 2, 3):
        _native.set_num_threads(count)
        results.append(run_case(case, case.inputs(dtype)))
    _native.set_num_threads(0)
    use_backend("numpy")

    for name, array in results[0].items():
        assert [other[name].tobytes() for other in results[1:]] == [array.tobytes()] * 2


def test_every_native_kernel_has_a_declared_op() -> None:
    assert undeclared_kernels() == ()
