"""What bounds figures that miss their must or their aim, and what was tried: notes of the page.

A share of a whole model counts its matrices alone: attention, norms, the quantisation of
activations and Python are in the time and not in the share.
"""

_FLOATS = (
    "the multiply-add pipes, in products of floats by panel; attention and norms are in the time "
    "and not in the share; tried: tiles of 32 outputs by 3 rows (registers spill, half of the "
    "speed), other prefetches (`kernels/linear.cpp`), scores by columns "
    "([152](decisions/0152-scores-by-columns.md), in)"
)
_Q4_K_ROWS = (
    "the multiply-add pipes: the limit is `vpmaddubsw` and `vpaddw` alone, and a kernel widens its "
    "sums and multiplies them by scales every 32 columns; tried: panels by chunks of columns "
    "([151](decisions/0151-panels-by-chunks-of-columns.md), in), rows met as packed or through a "
    "panel ([182](decisions/0182-superblocks-of-few-rows-go-through-a-panel.md), in)"
)
_Q8_0_ROWS = (
    "the multiply-add pipes: a signed code needs a step more; the panel kernel is at 62 to 67 % of "
    "the int8 loop with the sign's xor (`kernels/linear_q8.cpp`); tried: tiles as packed for more "
    "rows"
)
_READ_Q4_K = (
    "memory: Q4_K and Q6_K are read at the speed of a plain loop with one run a core, the limit "
    "has four; tried: four tiles apart (0.95 to 1.06 times the speed), codes of Q6_K laid out anew "
    "(no difference), [182](decisions/0182-superblocks-of-few-rows-go-through-a-panel.md)"
)
_READ_BF16 = (
    "memory; attention and norms are in the time and not in the share; tried: prefetch of 4 KiB "
    "(slower), two to four tiles side by side (equal), `kernels/linear.cpp`"
)
_SMALL = (
    "products of 256 rows with Q4_1 reach the loop by themselves (Ops); of a step of this size a "
    "good part is beside them, in attention first (`bench_step --prefill 256` tells it by op); "
    "tried: scores by columns ([152](decisions/0152-scores-by-columns.md), in), steps of 512 "
    "tokens ([174](decisions/0174-steps-of-256-tokens.md): one to three per cent)"
)
_BATCH = (
    "products of 16 rows are short of the loop by themselves (Ops, M=16); attention, norms and "
    "Python of 16 requests are in the time and not in the share"
)
# By (model, workload).
NOTES: dict[tuple[str, str], str] = {
    ("shape:qwen3-0.6b:bf16", "decode@128"): _READ_BF16,
    ("shape:qwen3-0.6b:bf16", "prefill 256"): _FLOATS,
    ("shape:qwen3-0.6b:f32", "prefill 256"): _FLOATS,
    ("shape:qwen3-0.6b:q4_k_m", "decode@128"): _READ_Q4_K,
    ("shape:qwen3-0.6b:q4_k_m", "prefill 256"): _Q4_K_ROWS,
    ("shape:qwen3-0.6b:q8_0", "prefill 256"): _Q8_0_ROWS,
    ("shape:qwen3-0.6b:q8_0", "prefill 512"): _Q8_0_ROWS,
    ("shape:qwen3-30b-a3b-quarter:q4_k_m", "decode@128"): (
        "memory: products are 97 % of the plan (`bench_step`), three quarters of them experts and "
        "the head, each at the rate of a plain read taken in turn; the rest of a step is Python, 2 "
        "%; tried: four tiles side by side, codes of Q6_K laid out otherwise (decision 182), a "
        "core for each thread (equal)"
    ),
    ("shape:smollm2-135m:bf16", "batch 16"): _BATCH,
    ("shape:smollm2-135m:q4_k_m", "batch 16"): f"{_BATCH}; {_Q4_K_ROWS}",
    ("shape:smollm2-135m:q8_0", "batch 16"): f"{_BATCH}; {_Q8_0_ROWS}",
    ("smollm2-135m", "prefill 256"): _SMALL,
    ("smollm2-135m", "batch 16"): _BATCH,
}
