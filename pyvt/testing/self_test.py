"""A short test of every native kernel against the reference, for ``pyvt doctor``.

The first OpCase of every op, dtype, weight format and kind of activations that a backend serves is
run in any case, then the second of each and so on, until they are through or the time is up.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pyvt import backends
from pyvt.dispatch import current_backend, get_op, use_backend
from pyvt.dispatch.backend import selected_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.errors import UnsupportedError
from pyvt.tensor.dtype import BLOCK_FORMATS, FP8_E4M3
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case, run_case_on
from pyvt.testing.op_cases.case import Inputs
from pyvt.testing.tolerance import compare

Clock = Callable[[], float]
_FORMATS = (*(dtype.name for dtype in BLOCK_FORMATS), "fp8")


@dataclass(slots=True)
class SelfTest:
    """What a self-test found.

    Attributes:
        backend: whose kernels ran.
        num_cases: cases compared, by ``op dtype``, behind which stand the formats of weights and
            the dtype of a cache where they are others.
        failures: what left its tolerance, in words.
        num_left_out: cases that the time did not reach.
        seconds: how long it took.
    """

    backend: str
    num_cases: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_left_out: int = 0
    seconds: float = 0.0


def self_test(backend: str, budget_s: float = 3.0, *, clock: Clock = time.perf_counter) -> SelfTest:
    """Compare the kernels of a backend with the reference, for about ``budget_s`` seconds.

    Raises ConfigError where the backend cannot be had.
    """
    backends.load(backend)
    selected = current_backend()
    found, start = SelfTest(backend=backend), clock()
    try:
        for rank, case, dtype in _in_turn():
            if rank == 0 or clock() - start < budget_s:
                _compare(found, case, dtype)
            else:
                found.num_left_out += 1
    finally:
        use_backend(selected)
    found.seconds = clock() - start
    return found


def _in_turn() -> Iterator[tuple[int, OpCase, str]]:
    """Yield (rank, case, dtype): the first case of each kind has rank 0, then the second.

    Kinds are told by ids, which hold the names of formats: to make the inputs of every case takes
    longer than the test may.
    """
    places: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for case in ALL_CASES:
        formats = [name for name in _FORMATS if f"{name}_" in f"{case.case_id}_"]
        act = "q8" if case.case_id.endswith("_q8") else ""
        for dtype in case.dtypes:
            kind = (case.op, dtype, *formats, act)
            ranked.append((places[kind], case, dtype))
            places[kind] += 1
    yield from sorted(ranked, key=lambda item: item[0])


def _kernel_name(case: OpCase, dtype: str, inputs: Inputs) -> str:
    """Return the op, the case's dtype, and what else a kernel must know of the inputs."""
    more = set()
    for value in inputs.values():
        if isinstance(value, QuantTensor | PackedTensor):
            more.add(value.dtype.name)
        elif isinstance(value, np.ndarray) and value.dtype == FP8_E4M3.numpy:
            more.add(FP8_E4M3.name)
    return " ".join((case.op, dtype, *sorted(more - {dtype})))


def _compare(found: SelfTest, case: OpCase, dtype: str) -> None:
    """Run one case on both sides; a case that the reference serves anyway is left out."""
    op = get_op(case.op)
    use_backend(found.backend)
    before = op.num_reference_calls
    device = selected_backend().device
    if device is not None and op.of_backend(found.backend) is None:
        return
    try:
        given = case.inputs(dtype)
        got = run_case(case, given) if device is None else run_case_on(device, case, given)
    except UnsupportedError:  # a device serves no other dtype, and no reference is there for it
        return
    if op.num_reference_calls > before:
        return
    use_backend(REFERENCE_BACKEND)
    want = run_case(case, case.inputs(dtype))
    kernel = _kernel_name(case, dtype, given)
    found.num_cases[kernel] = found.num_cases.get(kernel, 0) + 1
    for name, expected in want.items():
        difference = compare(got[name], expected, case.op_class, dtype)
        if not difference.is_within:
            found.failures.append(f"{case.name} {dtype} {name}: {difference.reason}")
