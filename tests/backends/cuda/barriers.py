"""Which results change where threads pass a barrier of a file with kernels.

``python -m tests.backends.cuda.barriers FILE`` runs its calls on the emulator with all barriers,
then with each of them passed in turn, in a process of its own, for what was never written may be
an address. Status 1 where a call is wrong with all barriers, or right without one; each such place
is printed.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tests.conftest  # noqa: F401  loads the build that is tested
from pyvt.backends import why_not
from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import DTYPES
from pyvt.testing.op_cases import ALL_CASES, OpCase, run_case, run_case_on
from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal
from pyvt.testing.op_cases.gated_delta import net_call, rule_call
from pyvt.testing.op_cases.moe import experts_call
from pyvt.testing.op_cases.state_slots import NONE, slot_arrays
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare

SOURCES = Path(__file__).resolve().parents[3] / "csrc" / "cuda"
BARRIER = re.compile(r"__sync(threads|warp)\(")
SEEDS = (0, 1)
# By their number in the file, what no call here can miss. Lanes meet in a product of fragments
# between the write and the read that these part: that keeps them in order on the emulator, but not
# their memory on a device. That of attn_states.cu is for an output that is an input, which has a
# test in test_device_attention.py.
NOT_HERE = {
    ("attention_decode.cu", 0),
    ("attention_decode.cu", 1),
    ("attn_states.cu", 0),
    ("gated_delta_chunks.cu", 5),
}

Call = tuple[OpCase, str]


def barriers() -> Iterator[tuple[str, int]]:
    """Yield file and line of each barrier of a kernel that the emulator can miss."""
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix not in (".cu", ".cuh", ".h") or "emu" in path.parts:
            continue
        lines = path.read_text().splitlines()
        found = [i for i, line in enumerate(lines, 1) if BARRIER.search(line.split("//")[0])]
        for index, line_number in enumerate(found):
            if (path.name, index) not in NOT_HERE:
                yield path.name, line_number


def _attention(
    head_dim: int, group: int, query_lens: list[int], cached: int, kind: str, **more: Any
) -> Call:
    """A step whose requests have ``cached`` tokens; blocks of the cache in order."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        seq_lens = np.array([n + cached for n in query_lens], np.int32)
        width = -(-int(seq_lens.max()) // 16)
        pool = (len(query_lens) * width, 16, 1, head_dim)
        return {
            "q": normal(rng, dtype, sum(query_lens), group, head_dim),
            "k_cache": normal(rng, dtype, *pool),
            "v_cache": normal(rng, dtype, *pool),
            "block_tables": np.arange(pool[0], dtype=np.int32).reshape(-1, width),
            "seq_lens": seq_lens,
            "cu_seqlens_q": np.cumsum([0, *query_lens]).astype(np.int32),
            "scale": head_dim**-0.5,
            **more,
        }

    return OpCase(op="paged_attention", case_id="b", make=make, op_class="attention"), kind


def _logits(op: str, op_class: str, num_rows: int, vocab: int, more: Inputs) -> Call:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        # Few values, so that borders have ties in every warp.
        logits = np.round(normal(rng, dtype, num_rows, vocab, scale=2.0))
        return {"logits": logits, **more}

    return OpCase(op=op, case_id="b", make=make, op_class=op_class), "f32"


def _product(name: str, num_rows: int, sizes: tuple[int, int], kind: str, act: str) -> Call:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        weight = random_weight(rng, DTYPES[name], *sizes, magnitude=sizes[1] ** -0.5)
        return {"x": normal(rng, dtype, num_rows, sizes[1]), "weight": weight, "act": act}

    return OpCase(op="quant_linear", case_id="b", make=make, op_class="linear"), kind


def _experts(formats: str, shape: tuple[int, int, int, int, int], kind: str, act: str) -> Call:
    make = experts_call(formats, shape, act=act)
    op_class = "experts_q8" if act == "q8" else "linear"
    return OpCase(op="fused_experts", case_id="b", make=make, op_class=op_class), kind


def _delta(op: str, make: MakeInputs, kind: str) -> Call:
    return (
        OpCase(op=op, case_id="b", make=make, op_class="delta_rule", mutates=("state",)),
        kind,
    )


def _linear(num_rows: int, num_cols: int, depth: int) -> Call:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        x = normal(rng, np.dtype(np.float32), num_rows, depth, scale=depth**-0.5)
        return {"x": x, "weight": normal(rng, dtype, num_cols, depth)}

    return OpCase(op="linear", case_id="b", make=make, op_class="linear"), "bf16"


def _named(*names: str) -> tuple[Call, ...]:
    """Cases by their names, ``op-case_id-dtype``."""
    found = {f"{case.name}-{dtype}": (case, dtype) for case in ALL_CASES for dtype in case.dtypes}
    return tuple(found[name] for name in names)


_KEPT = slot_arrays([100], [0], NONE, num_slots=1)
_KEPT["state_slots"][[5, 20, 63, 70]] = [2, 3, 0, 1]
_FILTERS = {
    "top_k": np.array([0, 20, 7, 1], np.int32),
    "top_p": np.array([0.6, 1.0, 0.35, 0.5], np.float32),
}
_DRAWS = {"seeds": np.arange(4, dtype=np.uint64), "positions": np.arange(4)}
_HALVES = (_product("q4_k", 19, (70, 256), "bf16", "none"),)
_INT8 = (_product("q4_k", 19, (70, 256), "f32", "q8"),)
_F32 = (_product("q4_k", 19, (70, 256), "f32", "none"),)
_FILTERED = (_logits("apply_top_k_top_p", "exact", 4, 1500, _FILTERS),)
# For each file with barriers the calls that meet them: several warps, and each loop twice.
CALLS: dict[str, tuple[Call, ...]] = {
    "attention.cu": (_attention(24, 2, [20, 3], 40, "f32"),),
    "attention_decode.cu": (
        _attention(64, 4, [1], 300, "bf16"),
        _attention(64, 4, [2, 1], 500, "f16"),
    ),
    "attention_prefill.cu": (_attention(64, 2, [70, 33], 50, "bf16"),),
    "gated_delta.cu": (
        _delta("gated_delta_rule", rule_call(slot_arrays([20]), (1, 2, 16, 24), "tiled"), "f32"),
    ),
    "gated_delta_chunks.cu": (
        _delta("gated_delta_rule", rule_call(_KEPT, (1, 2, 32, 40), "tiled"), "f32"),
        _delta("gated_delta_rule", rule_call(slot_arrays([130]), (1, 1, 32, 40), "tiled"), "bf16"),
    ),
    "linear.cu": (_linear(70, 70, 48),),
    "moe.cu": (
        _experts("f32", (20, 2, 16, 32, 32), "f32", "none"),
        _experts("f32", (41, 2, 4, 32, 32), "f32", "none"),
    ),
    "products.h": _HALVES + _INT8,
    "products_few.cu": (
        _product("q4_k", 3, (9, 4352), "f32", "none"),
        _product("q4_k", 3, (9, 4352), "f32", "q8"),
    ),
    "products_half.cu": _HALVES,
    "products_int8.cu": _INT8,
    "products_tile.cu": _F32,
    "reduce.cuh": (
        *_named("rms_norm-hidden_576-f32"),
        _delta("gated_delta_net", net_call(slot_arrays([4]), (1, 2, 16, 24), "tiled"), "f32"),
        _logits(
            "top_logprobs", "softmax", 3, 1500, {"token_ids": np.array([3, 7, 9]), "num_top": 5}
        ),
    ),
    "sampling.cu": (_logits("random_sample", "exact", 4, 1500, _DRAWS),),
    "top_k_top_p.cu": _FILTERED,
}


def is_right(calls: tuple[Call, ...], wanted: list[dict[str, Any]]) -> bool:
    """Whether calls on the emulator equal the reference, threads in a few orders."""
    from pyvt.backends.cuda import _native_emu as emu

    for seed in SEEDS:
        for (case, dtype), want in zip(calls, wanted, strict=True):
            emu.seed(seed)
            got = run_case_on(emu, case, case.inputs(dtype))
            for name in want:
                if not compare(got[name], want[name], case.op_class, dtype).is_within:
                    return False
    return True


def is_missed(file: str, line: int, calls: tuple[Call, ...], wanted: list[dict[str, Any]]) -> bool:
    """Whether a call is wrong, or ends with an error or a crash, once a barrier is passed."""
    from pyvt.backends.cuda import _native_emu as emu

    child = os.fork()
    if child == 0:
        emu.pass_barrier(file, line)
        status = 1
        try:
            status = 0 if is_right(calls, wanted) else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] != 0


def main(file: str) -> int:
    """Print the barriers that no call of a file misses; return 1 where there are any."""
    from pyvt.backends.cuda import _native_emu as emu

    calls = CALLS[file]
    use_backend("numpy")
    wanted = [run_case(case, case.inputs(dtype)) for case, dtype in calls]
    assert why_not("cuda-emu") is None, "the emulated module is not there"
    use_backend("cuda-emu")
    emu.use_cublas(False)
    if not is_right(calls, wanted):
        print(f"{file}: wrong with all barriers")
        return 1
    spare = [line for name, line in barriers() if name == file]
    spare = [line for line in spare if not is_missed(file, line, calls, wanted)]
    for line in spare:
        print(f"{file}:{line}: no call misses this barrier")
    return 1 if spare else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
