"""Every OpCase on the reference: against its golden, against f64, into ``out=``, from views."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import all_ops, get_op, reference_call_counts
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.testing.composites import COMPOSITES
from pyvt.testing.composites import DTYPES as COMPOSITE_DTYPES
from pyvt.testing.golden import Golden, read_op_goldens
from pyvt.testing.op_cases import ALL_CASES, OpCase, call_case, run_case, widened
from pyvt.testing.tolerance import compare

GOLDENS = list(read_op_goldens(Path(__file__).parents[2] / "parity" / "goldens"))
CASES_BY_NAME = {case.name: case for case in ALL_CASES}
FLOOR = 1000

CASES = [pytest.param(case, id=case.name) for case in ALL_CASES]
OUT_CASES = [pytest.param(case, id=case.name) for case in ALL_CASES if case.takes_out]
NARROW_CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in ALL_CASES
    for dtype in case.dtypes
    if dtype != "f64"
]
COMPOSITE_CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in ALL_CASES
    for dtype in case.dtypes
    if get_op(case.op).composite and dtype in COMPOSITE_DTYPES
]
LIGHT = """
import sys
before = set(sys.modules)
import pyvt.ops
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
files = {name for name in loaded if getattr(sys.modules[name], "__file__", None)}
print(*sorted(files - sys.stdlib_module_names))
"""


def bits(outputs: dict[str, Any]) -> dict[str, bytes]:
    """Return the bytes of every tensor by name; NaN equals itself here."""
    tensors = {k: v for k, v in outputs.items() if hasattr(v, "dtype")}
    stored = {k: v.data if isinstance(v, PackedTensor) else v for k, v in tensors.items()}
    return {name: getattr(v, "blocks", v).tobytes() for name, v in stored.items()}


@pytest.mark.parametrize("golden", [pytest.param(g, id=g.name) for g in GOLDENS])
def test_op_golden_matches_oracle(golden: Golden) -> None:
    case = CASES_BY_NAME[f"{golden.op}-{golden.case_id}"]

    got = run_case(case, golden.inputs)

    assert got.keys() == golden.outputs.keys()
    for name, want in golden.outputs.items():
        difference = compare(got[name], want, case.op_class, golden.dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


def _stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return values as a cache stores them: finite ones beyond f16 are its largest."""
    if dtype == np.float16:
        largest = float(np.finfo(np.float16).max)
        value = np.where(np.isfinite(value), np.clip(value, -largest, largest), value)
    return value.astype(dtype)


@pytest.mark.parametrize(("case", "dtype"), NARROW_CASES)
def test_op_narrow_matches_f64(case: OpCase, dtype: str) -> None:
    """A reference in a narrow dtype equals itself on the same values in f64; an exact one, once
    those are rounded to its output.
    """
    got = call_case(case, case.inputs(dtype))

    want = call_case(case, widened(case.inputs(dtype)))

    assert got.keys() == want.keys()
    for name in want:
        is_exact = case.op_class == "exact"
        value = _stored(want[name], got[name].dtype) if is_exact else want[name]
        difference = compare(got[name], value, case.op_class, dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


@pytest.mark.parametrize("case", OUT_CASES)
def test_op_out_is_written_and_returned(case: OpCase) -> None:
    want = run_case(case, case.inputs(case.dtypes[0]))["out"]
    out = np.empty_like(want)

    returned = getattr(ops, case.op)(**case.inputs(case.dtypes[0]), out=out)

    assert returned is out
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("case", OUT_CASES)
def test_op_out_may_be_a_view(case: OpCase) -> None:
    want = run_case(case, case.inputs(case.dtypes[0]))["out"]
    padded = np.zeros((*want.shape, 2), want.dtype)

    getattr(ops, case.op)(**case.inputs(case.dtypes[0]), out=padded[..., 1])

    assert padded[..., 1].tobytes() == want.tobytes()
    assert not padded[..., 0].any()


@pytest.mark.parametrize("case", CASES)
def test_op_inputs_are_left_alone(case: OpCase) -> None:
    inputs = case.inputs(case.dtypes[0])
    kept = {name: value for name, value in inputs.items() if name not in case.mutates}
    want = bits(kept)

    call_case(case, inputs)

    assert bits(kept) == want


@pytest.mark.parametrize("case", CASES)
def test_op_run_twice_gives_the_same_bits(case: OpCase) -> None:
    first = call_case(case, case.inputs(case.dtypes[-1]))

    second = call_case(case, case.inputs(case.dtypes[-1]))

    assert bits(first) == bits(second)


@pytest.mark.parametrize(("case", "dtype"), COMPOSITE_CASES)
def test_fused_op_equals_its_composite(case: OpCase, dtype: str) -> None:
    want = COMPOSITES[case.op](case.inputs(dtype))

    got = call_case(case, case.inputs(dtype))

    assert got.keys() == want.keys()
    for name in want:
        difference = compare(got[name], want[name], case.op_class, dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


@pytest.mark.parametrize("op", [op for op in all_ops() if op.composite], ids=lambda op: op.name)
def test_composite_calls_the_ops_that_are_declared(op: Any) -> None:
    case = next(case for case in ALL_CASES if case.op == op.name)
    before = reference_call_counts()

    COMPOSITES[op.name](case.inputs(case.dtypes[0]))

    after = reference_call_counts()
    assert {name for name in after if after[name] != before.get(name)} == set(op.composite)


def test_goldens_reach_the_floor() -> None:
    assert len(GOLDENS) >= FLOOR


def test_every_declared_op_has_a_golden() -> None:
    declared = {op.name for op in all_ops()}

    assert {golden.op for golden in GOLDENS} == declared


def test_every_case_with_a_golden_has_it_stored() -> None:
    stored = {(golden.op, golden.case_id, golden.dtype) for golden in GOLDENS}

    wanted = {(c.op, c.case_id, dtype) for c in ALL_CASES if c.has_golden for dtype in c.dtypes}

    assert stored == wanted


def test_every_declared_op_has_a_reference_and_a_case() -> None:
    for op in all_ops():
        assert [c.backend for c in op.candidates].count("numpy") == 1, op.name
        assert hasattr(ops, op.name), op.name
        assert any(case.op == op.name for case in ALL_CASES), op.name


def test_import_of_ops_loads_numpy_and_ml_dtypes_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["ml_dtypes", "numpy", "pyvt"]
