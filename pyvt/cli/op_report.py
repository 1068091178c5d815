"""What ``pyvt inspect --ops`` says: which kernel serves each op, in each dtype, under each backend.

Every op case that is small is called once under a tap of the op table, so the answer is what
dispatch chose, not what it should choose.
"""

from typing import Any

from pyvt import dispatch
from pyvt.backends import available
from pyvt.dispatch import Candidate, Op
from pyvt.errors import UnsupportedError
from pyvt.testing.op_cases import ALL_CASES, run_case

NO_KERNEL = "none"


def op_rows() -> list[dict[str, Any]]:
    """Return one row for each op and dtype: the kernel chosen under each backend that is here."""
    backends = sorted(available())
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    selected = dispatch.current_backend()
    try:
        for backend in backends:
            dispatch.use_backend(backend)
            for case in ALL_CASES:
                for dtype in case.dtypes:
                    key = (case.op, dtype)
                    row = rows.setdefault(key, {"op": case.op, "dtype": dtype, "kernels": {}})
                    if backend not in row["kernels"]:
                        row["kernels"][backend] = _chosen(case.op, case.inputs(dtype), case)
    finally:
        dispatch.use_backend(selected)
    return [rows[key] for key in sorted(rows)]


def _chosen(name: str, inputs: dict[str, Any], case: Any) -> str:
    """Return the backend whose kernel ran for a case."""
    chosen: list[str] = []

    def tap(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        if op.name == name:
            chosen.append(candidate.backend)
        op.run(candidate, args)

    with dispatch.tapped(tap):
        try:
            run_case(case, inputs)
        except UnsupportedError:
            return NO_KERNEL
    return chosen[0] if chosen else NO_KERNEL
