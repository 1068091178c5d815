"""Every OpCase, by family."""

from pyvt.testing.op_cases import (
    activation,
    attention,
    causal_conv,
    elementwise,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    logprobs,
    moe,
    norm,
    packed,
    penalties,
    quant_gguf,
    rope,
    sampling,
)
from pyvt.testing.op_cases.case import OpCase, call_case, run_case, run_case_on, widened

FAMILIES = (
    activation,
    attention,
    causal_conv,
    elementwise,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    logprobs,
    moe,
    norm,
    packed,
    penalties,
    quant_gguf,
    rope,
    sampling,
)
ALL_CASES: tuple[OpCase, ...] = tuple(case for family in FAMILIES for case in family.CASES)

__all__ = ["ALL_CASES", "OpCase", "call_case", "run_case", "run_case_on", "widened"]
