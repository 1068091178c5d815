"""Every OpCase on the reference: against its golden, against f64, into ``out=``, from views."""

from pathlib import Path

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import all_ops
from pyvt.testing.golden import Golden, read_op_goldens
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case
from pyvt.testing.tolerance import compare

GOLDENS = list(read_op_goldens(Path(__file__).parents[2] / "parity" / "goldens"))
CASES_BY_NAME = {case.name: case for case in ALL_CASES}
FLOOR = 40


@pytest.mark.parametrize("golden", [pytest.param(g, id=g.name) for g in GOLDENS])
def test_op_golden_matches_oracle(golden: Golden) -> None:
    case = CASES_BY_NAME[f"{golden.op}-{golden.case_id}"]

    got = run_case(case, golden.inputs)

    assert got.keys() == golden.outputs.keys()
    for name, want in golden.outputs.items():
        difference = compare(got[name], want, case.op_class, golden.dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in ALL_CASES if c.takes_out])
def test_op_out_is_written_and_returned(case: OpCase) -> None:
    inputs = case.inputs(case.dtypes[0])
    want = run_case(case, inputs)["out"]
    out = np.empty_like(want)

    returned = getattr(ops, case.op)(**case.inputs(case.dtypes[0]), out=out)

    assert returned is out
    np.testing.assert_array_equal(out, want)


def test_goldens_reach_the_floor() -> None:
    assert len(GOLDENS) >= FLOOR


def test_every_declared_op_has_a_golden() -> None:
    declared = {op.name for op in all_ops()}

    assert {golden.op for golden in GOLDENS} == declared


def test_every_declared_op_has_a_reference_and_a_case() -> None:
    for op in all_ops():
        assert [c.backend for c in op.candidates].count("numpy") == 1, op.name
        assert hasattr(ops, op.name), op.name
        assert any(case.op == op.name for case in ALL_CASES), op.name
