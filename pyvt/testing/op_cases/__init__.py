"""Every OpCase, by family."""

from pyvt.testing.op_cases import norm, quant_gguf
from pyvt.testing.op_cases.case import OpCase, run_case

FAMILIES = (norm, quant_gguf)
ALL_CASES: tuple[OpCase, ...] = tuple(case for family in FAMILIES for case in family.CASES)

__all__ = ["ALL_CASES", "OpCase", "run_case"]
