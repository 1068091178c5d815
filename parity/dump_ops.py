"""Write the goldens of ops: run other people's code on the inputs of every OpCase.

Run in an environment with torch and transformers (``pip install '.[parity]'``):

    python parity/dump_ops.py [OP ...]

An oracle is a function ``(inputs) -> outputs`` over dicts of NumPy arrays, found by the op's name
in the ``ORACLES`` table of ``parity/oracles/<family>.py``. It computes in f64 on the very inputs of
the case, so that a golden has no rounding of its own.
"""

import sys
from pathlib import Path

import numpy as np

from parity.oracles import ORACLES, versions
from parity.oracles.oracle import Arrays
from pyvt.errors import did_you_mean
from pyvt.testing.golden import Golden, write_op_goldens
from pyvt.testing.op_cases import ALL_CASES, OpCase

GOLDENS = Path(__file__).with_name("goldens")


def _stored(outputs: Arrays, dtype: str) -> Arrays:
    """Keep f64 where a case is judged to f32 or better; f32 holds the truth of a half."""
    is_half = dtype in ("bf16", "f16")
    return {
        name: array.astype(np.float32) if is_half and array.dtype == np.float64 else array
        for name, array in outputs.items()
    }


def _goldens_of(case: OpCase) -> list[Golden]:
    oracle = ORACLES[case.op]
    return [
        Golden(
            op=case.op,
            case_id=case.case_id,
            dtype=dtype,
            origin=case.origin,
            oracle=oracle.callable,
            inputs=case.inputs(dtype),
            outputs=_stored(oracle.run(case.inputs(dtype)), dtype),
        )
        for dtype in case.dtypes
    ]


def main(names: list[str]) -> None:
    """Dump the ops of these names, all where none is given."""
    for op in names:
        if op not in ORACLES:
            sys.exit(f"error: [dump] op: {op!r} is unknown; {did_you_mean(op, ORACLES)}")
    for op in names or sorted({case.op for case in ALL_CASES}):
        cases = [case for case in ALL_CASES if case.op == op and case.has_golden]
        goldens = [golden for case in cases for golden in _goldens_of(case)]
        oracle = {"callable": ORACLES[op].callable, **versions()}
        write_op_goldens(GOLDENS / "ops" / op, op, oracle, goldens)
        print(f"{op}: {len(cases)} cases, {len(goldens)} goldens")


if __name__ == "__main__":
    main(sys.argv[1:])
