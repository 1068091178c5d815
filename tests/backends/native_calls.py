"""Calls of native ops as the backend makes them: the arguments behind the checks of a public op."""

from typing import Any

import numpy as np

from pyvt.dispatch.table import Candidate, Op, tapped
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [arg.copy("K") if isinstance(arg, np.ndarray) else arg for arg in args]


def _worth(case: OpCase) -> tuple[bool, int]:
    """How much a case tells: no array missing, none empty, but small."""
    inputs = case.inputs("f32" if "f32" in case.dtypes else case.dtypes[0])
    arrays = [value for value in inputs.values() if isinstance(value, np.ndarray)]
    size = sum(array.size for array in arrays)
    is_whole = all(array.size for array in arrays) and all(
        value is not None for value in inputs.values()
    )
    return is_whole and 8 < size < 20_000, -size


def richest_call(op: str) -> tuple[OpCase, tuple[Any, ...]]:
    """The case of an op that tells most of those that the backend itself runs, and its call."""
    calls: list[tuple[Any, ...]] = []

    def tap(called: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        if called.name == op and candidate.backend == "cpu":
            calls.append(tuple(copies(args)))
        called.run(candidate, args)

    from pyvt.backends.cpu import _native

    dtypes = {*_native.OPS[op].split()}
    cases = [case for case in ALL_CASES if case.op == op and {*case.dtypes} & dtypes]
    for case in sorted(cases, key=_worth, reverse=True):
        with tapped(tap):
            run_case(case, case.inputs(case.dtypes[0]))
        if calls:
            return case, calls[0]
    raise AssertionError(f"{op}: no case that runs natively")
