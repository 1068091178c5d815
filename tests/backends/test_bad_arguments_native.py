"""Every native op with each argument made wrong in every way of a table, one at a time: through its
binding and through the public op. A typed error or a result, never a crash; the long random search
is test_bad_calls_native.py.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.errors import KernelError, PyvtError
from pyvt.tensor.dtype import DTYPES
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases import call_case, run_case
from tests.backends.native_calls import copies, richest_call

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    NATIVE = {op: text.split() for op, text in _native.OPS.items()}
else:
    NATIVE = {}

# What a binding may raise: pybind11 refuses what is no array of a known dtype.
TYPED = (KernelError, TypeError, MemoryError)
# One in so many changes of an argument is tried; sanitizers take a selection (native_builds.py).
SPREAD = int(os.environ.get("PYVT_TEST_SPREAD", "1"))
ENDS = (-(2**63), -(2**31), -1, 0, 1, 2**31 - 1, 2**63 - 1)
Array = np.ndarray[Any, Any]
Weight = PackedTensor | QuantTensor


def _mapped(array: Array) -> Array:
    """A copy in pages that may not be written: a write is a signal."""
    buffer = mmap.mmap(-1, max(1, array.nbytes))
    buffer.write(np.ascontiguousarray(array).tobytes())
    fixed = mmap.mmap(-1, max(1, array.nbytes), prot=mmap.PROT_READ)
    del buffer
    return np.frombuffer(fixed, array.dtype, array.size).reshape(array.shape)


def _unaligned(array: Array) -> Array:
    memory = np.zeros(array.nbytes + 64, np.uint8)
    shifted = memory[1 : 1 + array.nbytes].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return shifted


def _filled(array: Array, value: Any) -> Array:
    if array.dtype.kind not in "iu":
        value = float(value)
    else:
        limits = np.iinfo(array.dtype)
        value = min(max(value, limits.min), limits.max)
    with np.errstate(all="ignore"):
        return np.full(array.shape, value).astype(array.dtype)


def _as(array: Array, dtype: Any) -> Array:
    return np.zeros(array.shape, dtype)


# The argument as a whole.
CHANGES: dict[str, Callable[[Array], Any]] = {
    "none": lambda array: None,
    "text": lambda array: "x",
    "number": lambda array: 3,
    "list": lambda array: [1.0],
    "object": lambda array: object(),
    "read_only_pages": _mapped,
    "unaligned": _unaligned,
    "no_dims": lambda array: np.zeros((), array.dtype),
    "flat": lambda array: array.reshape(-1),
    "one_dim_more": lambda array: array[None],
    "seven_dims": lambda array: array.reshape(*[1] * (7 - array.ndim), *array.shape),
    "transposed": lambda array: array.T,
    "repeated": lambda array: np.broadcast_to(np.zeros((), array.dtype), array.shape),
    "nan": lambda array: _filled(array, 0) if array.dtype.kind in "iu" else array * np.nan,
    **{
        f"of_{np.dtype(dtype)}": lambda array, dtype=dtype: _as(array, dtype)
        for dtype in (
            "f8", "f4", "f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
            ">f4", ">i8", "i8", "i4", "i1", "u1", "?", "c8", "O", "V3",
        )
    },
    **{f"all_{end}": lambda array, end=end: _filled(array, end) for end in ENDS},
}  # fmt: skip

# One axis of it.
AXIS_CHANGES: dict[str, Callable[[Array, int], Array]] = {
    "empty": lambda array, axis: array.take(range(0), axis),
    "less": lambda array, axis: array.take(range(array.shape[axis] - 1), axis),
    "twice": lambda array, axis: np.concatenate([array, array], axis),
    "backwards": lambda array, axis: np.flip(array, axis),
    "gaps": lambda array, axis: np.moveaxis(
        np.repeat(np.moveaxis(array, axis, 0), 2, axis=0)[::2], 0, axis
    ),
    "huge": lambda array, axis: np.lib.stride_tricks.as_strided(
        array,
        [2**16 + 1 if i == axis else size for i, size in enumerate(array.shape)],
        [0 if i == axis else stride for i, stride in enumerate(array.strides)],
    ),
}
SCALARS = (None, "", "none", "q8", [], -(2**63), -1, 0, 1, 2**40, 2**64, -1e300, float("nan"))


def _wrong_arrays(array: Array) -> Iterator[tuple[str, Any]]:
    for name, change in CHANGES.items():
        with np.errstate(all="ignore"):
            yield name, change(array)
    for name, change_axis in AXIS_CHANGES.items():
        for axis in range(array.ndim if array.size else 0):
            yield f"{name}_{axis}", change_axis(array, axis)


def _wrong_weights(weight: Weight) -> Iterator[tuple[str, Any]]:
    """Weights whose parts do not fit, made past the checks of their types."""
    names = ("dtype", "shape", "layout", "data", "blocks", "columns")
    parts = {name: getattr(weight, name) for name in names if hasattr(weight, name)}
    *leading, columns = weight.shape
    shapes = [(), (0,), (2**62, 32), (32, 2**62), (2**33, 2**33), (-16, 32), tuple(leading)]
    shapes += [(*leading, size) for size in (-1, 0, 1, 31, 2**40)]
    shapes += [(size, *leading[1:], columns) for size in (-1, 0, 2**40)]
    changes: list[dict[str, Any]] = [{"shape": shape} for shape in shapes]
    changes += [{"dtype": DTYPES[name]} for name in ("f64", "i8", "q4_0", "q6_k", "fp8_g32", "f16")]
    of_bytes = "data" if isinstance(weight, PackedTensor) else "blocks"
    held = parts[of_bytes]
    changes += [{of_bytes: held[:0]}, {of_bytes: held[:-1]}, {of_bytes: held[..., :-1]}]
    for change in changes:
        made = object.__new__(type(weight))
        for name, value in (parts | change).items():
            object.__setattr__(made, name, value)
        yield f"{next(iter(change))} {str(change)[:60]}", made
    yield of_bytes, held


def _wrong(arg: Any, turn: int) -> Iterator[tuple[str, Any]]:
    """What an argument may be changed to: one in SPREAD of all, the first by ``turn``."""
    if isinstance(arg, np.ndarray):
        found = _wrong_arrays(arg)
    elif isinstance(arg, Weight):
        found = _wrong_weights(arg)
    else:
        found = ((f"scalar {scalar}", scalar) for scalar in SCALARS)
    return islice(found, turn % SPREAD, None, SPREAD)


def _turn(op: str) -> int:
    """Where the selection of an op starts: neighbours in the table take other changes."""
    return list(NATIVE).index(op)


@pytest.fixture(autouse=True)
def on_the_cpu_backend() -> Iterator[None]:
    use_backend("cpu")
    yield
    use_backend("numpy")


@pytest.mark.parametrize("op", NATIVE)
def test_binding_refuses_or_bears_any_wrong_argument(op: str) -> None:
    case, args = richest_call(op)
    kernel, inputs = getattr(_native, op), case.inputs(case.dtypes[0])
    want = run_case(case, inputs)

    for place, arg in enumerate(args):
        for name, wrong in _wrong(arg, _turn(op) + place):
            given = copies(args)
            given[place] = wrong
            try:
                kernel(*given)
            except TYPED:
                continue
            except Exception as error:
                raise AssertionError(f"argument {place} {name}: {error!r}") from error

    got = run_case(case, inputs)
    assert {k: v.tobytes() for k, v in got.items()} == {k: v.tobytes() for k, v in want.items()}


@pytest.mark.parametrize("op", NATIVE)
def test_public_op_refuses_or_bears_any_wrong_argument(op: str) -> None:
    case, _ = richest_call(op)
    inputs = case.inputs(case.dtypes[0])

    for place, (name, arg) in enumerate(inputs.items()):
        if isinstance(arg, Weight):
            continue  # nobody makes one whose parts do not fit
        for change, wrong in _wrong(arg, _turn(op) + place):
            given = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
            given[name] = wrong
            try:
                call_case(case, given)
            except PyvtError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} {change}: {error!r}") from error


def test_read_only_output_is_named() -> None:
    x = np.ones((2, 8), np.float32)

    with pytest.raises(KernelError, match=r"^\[relu\] out: expected a writeable array, got a re"):
        _native.relu(_mapped(x), x)


@pytest.mark.parametrize(
    ("num_rows", "dtype", "num_columns"),
    [
        *((rows, 0, 64) for rows in (-1, -(2**63), 2**62, 2**63 - 1)),
        *((16, 0, columns) for columns in (-1, 2**62, 2**63 - 1)),
        (2**40, 0, 2**40),
        (2**39, 8, 2**39),
        (16, 8, 33),
    ],
)
def test_size_of_an_absurd_matrix_is_refused(num_rows: int, dtype: int, num_columns: int) -> None:
    with pytest.raises(KernelError, match=r"^\[prepack_weight\] weight: expected "):
        _native.packed_bytes(num_rows, dtype, num_columns)


@pytest.mark.parametrize("dtype", [-(2**31), -1, 9, 24, 99, 103, 2**31 - 1])
def test_dtype_without_a_packer_has_no_size(dtype: int) -> None:
    assert _native.packed_bytes(16, dtype, 32) == -1


def test_tiles_that_do_not_fit_are_refused() -> None:
    rows, data = np.zeros((16, 34), np.uint8), np.zeros(544, np.uint8)
    bad: list[tuple[Any, Any, int, int]] = [
        (data[:-1], [rows], 8, 32),
        (data, [rows[:, :-1]], 8, 32),
        (data, [rows[:, ::2]], 8, 32),
        (data, [rows] * 2, 8, 32),
        (data, [rows.astype(np.int8)], 8, 32),
        (data, [rows], 8, 2**62),
        (data, [rows], 8, -32),
        (data, [rows], 99, 32),
        (_mapped(data), [rows], 8, 32),
        (data.reshape(2, -1), [rows], 8, 32),
        (data, [rows[0]], 8, 32),
        (data, [], 8, 32),
    ]

    for call in bad:
        with pytest.raises(KernelError, match=r"^\[prepack_weight\] "):
            _native.pack_tiles(*call)


def test_outputs_that_overlap_an_input_do_no_harm() -> None:
    memory = np.arange(4096, dtype=np.float32)
    for shift in (-1, 1, 7, 64):
        out, x = memory[100 : 100 + 1024], memory[100 + shift : 1124 + shift]
        for op in ("relu", "silu", "sigmoid", "gelu"):
            getattr(_native, op)(out, x)
        _native.add(out, x, x[::-1])
        _native.rms_norm(out.reshape(8, 128), x.reshape(8, 128), x[:128], 1e-6)
    assert np.isfinite(ops.relu(memory)[1200:]).all()
