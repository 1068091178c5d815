"""Every OpCase, by family."""

from pyvt.testing.op_cases import attention, kv_cache, logprobs, norm, penalties, sampling
from pyvt.testing.op_cases.case import OpCase, run_case

FAMILIES = (attention, kv_cache, logprobs, norm, penalties, sampling)
ALL_CASES: tuple[OpCase, ...] = tuple(case for family in FAMILIES for case in family.CASES)

__all__ = ["ALL_CASES", "OpCase", "run_case"]
