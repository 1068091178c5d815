"""Calls of native ops with one argument made wrong: a typed error or a result, never a crash, and
the next right call gives the bits that it gave before.

The arguments are those of an OpCase as they reach the kernel, past the checks of the public op. A
read or write outside of an array shows under the address sanitizer (tests/native_builds.py).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.dispatch.table import Candidate, Op, tapped
from pyvt.errors import KernelError, PyvtError
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases import ALL_CASES, run_case

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
    NATIVE = {op: text.split() for op, text in _native.OPS.items()}
else:
    ISAS, NATIVE = ["none"], {}

CASES = [
    (case, dtype) for case in ALL_CASES for dtype in case.dtypes if dtype in NATIVE.get(case.op, ())
]
NUM_EXAMPLES = int(os.environ.get("PYVT_TEST_EXAMPLES", "200"))
DTYPE_NAMES = ("f64", "f32", "bf16", "f16", "i64", "i32", "i8", "u8", "u64", "bool")
INTEGERS = (-(2**62), -(2**31), -2, -1, 0, 1, 7, 2**31, 2**62)
SCALARS = (None, "text", "none", "q8", -(2**40), -1, 0, 1, 2**40, -1e300, 0.5, float("nan"))

Mutation = Callable[[np.ndarray, int, int], Any]


def _cast(array: np.ndarray, axis: int, pick: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return array.astype(DTYPES[DTYPE_NAMES[pick % len(DTYPE_NAMES)]].numpy)


def _set_one(array: np.ndarray, axis: int, pick: int) -> np.ndarray:
    changed = array.copy()
    if changed.size:
        place = pick % changed.size
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            value = INTEGERS[pick % len(INTEGERS)]
            changed.reshape(-1)[place] = min(max(value, limits.min), limits.max)
        elif array.dtype.kind != "b":
            changed.reshape(-1)[place] = (np.nan, np.inf, -np.inf, -0.0)[pick % 4]
    return changed


def _spread(array: np.ndarray, axis: int, pick: int) -> np.ndarray:
    """The same values with gaps along an axis."""
    if not array.ndim:
        return array
    return np.take(np.repeat(array, 2, axis=axis), range(2 * array.shape[axis]), axis=axis)[
        tuple(slice(None, None, 2 if i == axis else None) for i in range(array.ndim))
    ]


def _read_only(array: np.ndarray, axis: int, pick: int) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


MUTATIONS: dict[str, Mutation] = {
    "dtype": _cast,
    "value": _set_one,
    "gaps": _spread,
    "read_only": _read_only,
    "nothing": lambda array, axis, pick: None,
    "not_an_array": lambda array, axis, pick: [1.0, 2.0],
    "less": lambda array, axis, pick: array[
        tuple(slice(None, -1 if i == axis else None) for i in range(array.ndim))
    ],
    "more": lambda array, axis, pick: np.concatenate([array, array], axis) if array.ndim else array,
    "empty": lambda array, axis, pick: array[
        tuple(slice(0, 0 if i == axis else None) for i in range(array.ndim))
    ],
    "one_dim_more": lambda array, axis, pick: array[None],
    "no_dims": lambda array, axis, pick: array.reshape(-1)[:1].reshape(()) if array.size else array,
    "flat": lambda array, axis, pick: array.reshape(-1),
    "reversed": lambda array, axis, pick: np.flip(array, axis) if array.ndim else array,
    "transposed": lambda array, axis, pick: array.T,
    "one_value": lambda array, axis, pick: (
        np.broadcast_to(array.reshape(-1)[:1].reshape(()), array.shape) if array.size else array
    ),
}


def _mutated(arg: Any, mutation: str, axis: int, pick: int) -> Any:
    if isinstance(arg, PackedTensor):
        other = (*NATIVE["packed_linear"], "f64")[pick % (len(NATIVE["packed_linear"]) + 1)]
        columns = (32, 256, arg.shape[-1], arg.shape[-1] * 2)[axis % 4]
        shape = (*arg.shape[:-1], columns) if pick % 3 else (arg.shape[0], columns)
        try:
            return PackedTensor(DTYPES[other], shape, arg.layout, arg.data)
        except PyvtError:
            return PackedTensor(arg.dtype, arg.shape, arg.layout, arg.data.copy())
    if isinstance(arg, QuantTensor):
        return ops.prepack_weight(arg) if pick % 2 else arg.blocks
    if isinstance(arg, np.ndarray):
        return MUTATIONS[mutation](arg, axis % max(1, arg.ndim), pick)
    return SCALARS[pick % len(SCALARS)]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The CPU backend at one level, put back after the test."""
    use_backend("cpu")
    _native.use_isa(request.param)
    yield request.param
    _native.use_isa("auto")
    use_backend("numpy")


ELEMENTWISE = {"cast": (), "relu": (), "scale": (2.0,), "soft_cap": (2.0,), "add": (None,)}


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_call_without_any_array_is_refused(isa: str, op: str) -> None:
    with pytest.raises(KernelError, match=rf"\[{op}\] tensors: expected an array each, got none"):
        getattr(_native, op)(None, None, *ELEMENTWISE[op])


def test_plan_that_is_dropped_while_it_records_takes_calls_on(isa: str) -> None:
    plan, x = _native.Plan(), np.ones(4, np.float32)
    plan.start()
    del plan
    out = np.empty_like(x)

    _native.scale(out, x, 2.0)
    _native.Plan().stop()

    assert out.tolist() == [2.0] * 4


@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    case_and_dtype=st.sampled_from(CASES or [None]),
    mutation=st.sampled_from(sorted(MUTATIONS)),
    place=st.integers(0, 12),
    axis=st.integers(0, 3),
    pick=st.integers(0, 2**16),
)
def test_call_with_one_wrong_argument_is_refused_or_harmless(
    isa: str, case_and_dtype: Any, mutation: str, place: int, axis: int, pick: int
) -> None:
    case, dtype = case_and_dtype
    want = run_case(case, case.inputs(dtype))

    def tap(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        if op.name == case.op and candidate.backend == "cpu":
            wrong = [arg.copy("K") if isinstance(arg, np.ndarray) else arg for arg in args]
            wrong[place % len(args)] = _mutated(wrong[place % len(args)], mutation, axis, pick)
            with suppress(KernelError, TypeError):
                candidate.kernel(*wrong)
        op.run(candidate, args)

    with tapped(tap):
        got = run_case(case, case.inputs(dtype))

    assert {name: array.tobytes() for name, array in got.items()} == {
        name: array.tobytes() for name, array in want.items()
    }
