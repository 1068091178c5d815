"""Every op of libpyvt_ops by ctypes: the bits of the module, and any argument wrong.

C callers give pointers and sizes on trust: what is made wrong here needs no more memory than there
is.
"""

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import DTYPES, dtype_of
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from tests.backends.c_library import INVALID, MAX_RANK, OK, Tensor, load, tensor
from tests.backends.native_calls import copies, richest_call

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    OPS = tuple(_native.OPS)
else:
    OPS = ()

SCALARS = {"pyvt_f64": ctypes.c_double, "pyvt_i64": ctypes.c_int64}
PARAMETER = re.compile(r"(pyvt_\w+) \w+")


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return load()


@pytest.fixture(autouse=True)
def on_the_cpu_backend() -> Iterator[None]:
    use_backend("cpu")
    yield
    use_backend("numpy")


def _kinds(repo: Path, op: str) -> list[str]:
    """The types of an op's parameters, as the header has them."""
    text = (repo / "csrc" / "include" / "pyvt" / "op_list.h").read_text()
    row = re.search(rf'X\({op}, "[^(]*\(([^)]*)\)', text)
    assert row is not None, f"{op}: has a row"
    return PARAMETER.findall(row[1])


def _tensor(library: ctypes.CDLL, kind: str, arg: Any) -> Tensor:
    """An array, a weight in tiles, or one in rows of blocks."""
    if isinstance(arg, np.ndarray) and kind != "pyvt_experts":
        return tensor(library, dtype_of(arg).name, arg)
    if kind == "pyvt_blocks":
        assert isinstance(arg, QuantTensor), "an op on blocks is called with blocks"
        return tensor(library, arg.dtype.name, np.ascontiguousarray(arg.blocks), arg.shape)
    packed = arg if isinstance(arg, PackedTensor) else ops.prepack_weight(arg)
    assert isinstance(packed, PackedTensor), "every format has tiles"
    return tensor(library, packed.dtype.name, packed.data, packed.shape)


def _in_c(library: ctypes.CDLL, kind: str, arg: Any) -> Any:
    if kind in SCALARS:
        return SCALARS[kind](arg)
    if kind == "pyvt_text":
        return ctypes.c_char_p(arg.encode())
    if arg is None:
        return None
    if kind.startswith("pyvt_opt_"):
        return ctypes.byref(SCALARS[kind.replace("opt_", "")](arg))
    return _tensor(library, kind, arg)


def _call(library: ctypes.CDLL, op: str, given: list[Any]) -> int:
    args = [ctypes.byref(arg) if isinstance(arg, Tensor) else arg for arg in given]
    return int(getattr(library, f"pyvt_{op}")(*args))


def _wrong(given: Any) -> Iterator[tuple[str, Any]]:
    """What may stand in place of an argument, each as small as what is there, or smaller."""
    if given is not None and not isinstance(given, ctypes.c_double | ctypes.c_int64):
        yield "null", None
    if isinstance(given, ctypes.c_char_p):
        yield "text", ctypes.c_char_p(b"x")
    if isinstance(given, ctypes.c_int64):
        yield from ((f"{n}", ctypes.c_int64(n)) for n in (-(2**63), -1, 0, 2**31, 2**63 - 1))
    if isinstance(given, ctypes.c_double):
        yield from ((f"{x}", ctypes.c_double(x)) for x in (-1e300, 0.0, float("nan")))
    if not isinstance(given, Tensor):
        return
    for rank in (*range(-1, given.rank), MAX_RANK + 1, 2**31 - 1):
        yield f"rank {rank}", _changed(given, rank=rank)
    for name, dtype in _narrower(given).items():
        yield name, _changed(given, dtype=dtype)
    yield "no data", _changed(given, data=None)
    for axis in range(given.rank):
        for size in {0, given.shape[axis] - 1, -1, -(2**63)}:
            yield f"axis {axis} of {size}", _changed(given, axis=axis, size=size)


def _narrower(given: Tensor) -> dict[str, int]:
    """Numbers of dtypes that need no more bytes than a tensor's own, and of none."""
    numbers = {name: (number, bits) for name, (number, bits) in _bits_of_dtypes().items()}
    own = next(bits for number, bits in numbers.values() if number == given.dtype)
    found = {name: number for name, (number, bits) in numbers.items() if bits <= own}
    return found | {"no dtype": -1, "another": 99}


def _bits_of_dtypes() -> dict[str, tuple[int, float]]:
    """The number of each dtype that kernels know, and its bits for an element."""
    return {name: (row[0], DTYPES[name].bits_per_element) for name, row in _native.DTYPES.items()}


def _changed(
    given: Tensor, *, axis: int = 0, size: int | None = None, **fields: int | None
) -> Tensor:
    made = Tensor.from_buffer_copy(given)
    made.owner = given.owner
    if size is not None:
        made.shape[axis] = size
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("op", OPS)
def test_op_in_c_gives_the_bits_of_the_module(library: ctypes.CDLL, repo: Path, op: str) -> None:
    _, args = richest_call(op)
    kinds = _kinds(repo, op)
    by_module, by_c = copies(args), copies(args)

    getattr(_native, op)(*by_module)
    status = _call(library, op, [_in_c(library, *pair) for pair in zip(kinds, by_c, strict=True)])

    assert status == OK, library.pyvt_last_error()
    for kind, want, got in zip(kinds, by_module, by_c, strict=True):
        if kind == "pyvt_out" and want is not None:
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("op", OPS)
def test_op_in_c_refuses_or_bears_any_wrong_argument(
    library: ctypes.CDLL, repo: Path, op: str
) -> None:
    _, args = richest_call(op)
    kinds, held = _kinds(repo, op), copies(args)
    given = [_in_c(library, *pair) for pair in zip(kinds, held, strict=True)]

    for place, arg in enumerate(given):
        for name, wrong in _wrong(arg):
            changed = [*given[:place], wrong, *given[place + 1 :]]
            status = _call(library, op, changed)

            assert status in (OK, INVALID), f"argument {place} {name}: {library.pyvt_last_error()}"
            assert status == OK or library.pyvt_last_error()


def test_plain_weight_in_a_dtype_of_blocks_is_refused(library: ctypes.CDLL, repo: Path) -> None:
    """Its rows would be read as blocks, which may be longer than they are."""
    _, args = richest_call("linear")
    kinds = _kinds(repo, "linear")
    out, x, weight, bias = (_in_c(library, *pair) for pair in zip(kinds, copies(args), strict=True))
    blocks = [row[0] for name, row in _native.DTYPES.items() if DTYPES[name].is_block]

    assert blocks
    for number in blocks:
        status = _call(library, "linear", [out, x, _changed(weight, dtype=number), bias])

        assert status == INVALID
        assert b"weight: expected floats" in library.pyvt_last_error()
