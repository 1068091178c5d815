"""Every OpCase, by family."""

from pyvt.testing.op_cases import activation, elementwise, embedding, linear, norm, rope
from pyvt.testing.op_cases.case import OpCase, call_case, run_case, widened

FAMILIES = (activation, elementwise, embedding, linear, norm, rope)
ALL_CASES: tuple[OpCase, ...] = tuple(case for family in FAMILIES for case in family.CASES)

__all__ = ["ALL_CASES", "OpCase", "call_case", "run_case", "widened"]
