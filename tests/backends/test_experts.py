"""Experts of the CPU backend: a token's bits are its own, whatever runs beside it, and in plans."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import get_op, use_backend
from pyvt.tensor.dtype import DTYPES
from pyvt.testing.op_cases import ALL_CASES
from pyvt.testing.op_cases.moe import experts_call, in_orders
from tests.backends.test_c_api import OK, library, tensor

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
else:
    ISAS = ["none"]

__all__ = ["library"]
# Formats of gate, up and down; rows of an expert go through direct and panel kernels.
KINDS = [
    pytest.param(formats, act, id=f"{formats.replace(' ', '-')}-{act}")
    for formats, act in (
        ("f32", "none"),
        ("bf16", "none"),
        ("q4_k q4_k q6_k", "q8"),
        ("q8_0 f16 q4_0", "q8"),
        ("q4_k", "none"),
        ("int4_g128 int4_g32 int8_g128", "q8"),
    )
]


@pytest.fixture(autouse=True, params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The CPU backend at one level, put back with its threads."""
    use_backend("cpu")
    _native.use_isa(request.param)
    yield request.param
    use_backend("numpy")
    _native.use_isa("auto")
    _native.set_num_threads(0)


def _call(formats: str, act: str, num_tokens: int, top_k: int = 3) -> dict[str, Any]:
    make = experts_call(formats, (num_tokens, top_k, 5, 256, 256), act=act)
    if formats.startswith("int4"):
        make = in_orders(make, "gate up", "down")
    return make(np.random.default_rng(7), np.dtype(np.float32))


def _some(call: dict[str, Any], tokens: Any) -> dict[str, Any]:
    of_tokens = ("x", "expert_ids", "expert_weights")
    return call | {name: np.ascontiguousarray(call[name][tokens]) for name in of_tokens}


@pytest.mark.parametrize(("formats", "act"), KINDS)
def test_token_gets_the_same_bits_alone_and_in_any_batch(formats: str, act: str) -> None:
    call = _call(formats, act, 130)
    want = ops.fused_experts(**call)

    order = np.random.default_rng(8).permutation(130)
    shuffled = ops.fused_experts(**_some(call, order))
    pieces = [ops.fused_experts(**_some(call, slice(a, a + 17))) for a in range(0, 130, 17)]
    alone = [ops.fused_experts(**_some(call, slice(t, t + 1))) for t in (0, 64, 129)]

    assert shuffled.tobytes() == want[order].tobytes()
    assert np.concatenate(pieces).tobytes() == want.tobytes()
    assert np.concatenate(alone).tobytes() == want[[0, 64, 129]].tobytes()


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_tokens_beyond_a_block_of_pairs_get_the_same_bits(num_threads: int) -> None:
    call = experts_call("f32", (1100, 4, 9, 24, 20))(np.random.default_rng(0), np.dtype("f4"))
    want = np.concatenate([ops.fused_experts(**_some(call, slice(t, t + 1))) for t in range(1100)])
    _native.set_num_threads(num_threads)

    got = ops.fused_experts(**call)

    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("formats", ["q4_k q4_k q6_k", "int4_g128 int4_g32 int8_g128"])
def test_plan_reads_the_experts_of_a_step_when_it_runs(formats: str) -> None:
    call = _call(formats, "q8", 4)
    logits = np.random.default_rng(1).standard_normal((4, 5), np.float32)
    other = -logits
    plan = _native.Plan()

    def step() -> tuple[Any, Any]:
        weights, ids = ops.router_topk(logits, 3, renormalize=True)
        return ids, ops.fused_experts(**call | {"expert_ids": ids, "expert_weights": weights})

    plan.start()
    ids, out = step()
    plan.stop()
    recorded = ids.copy(), out.copy()
    logits[...] = other
    want_ids, want = step()
    plan.run()

    assert ids.tolist() == want_ids.tolist() != recorded[0].tolist()
    assert out.tobytes() == want.tobytes() != recorded[1].tobytes()


def test_router_chooses_what_the_reference_chooses_among_many_near_ties() -> None:
    logits = np.random.default_rng(2).integers(0, 40, (300, 128)).astype(np.float32) / 8
    before = get_op("router_topk").num_reference_calls

    weights, ids = ops.router_topk(logits, 8, renormalize=True)

    assert get_op("router_topk").num_reference_calls == before
    use_backend("numpy")
    want_weights, want_ids = ops.router_topk(logits, 8, renormalize=True)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(weights, want_weights, rtol=1e-5)


@pytest.mark.parametrize("name", ["router_topk", "fused_experts", "add_shared_expert"])
def test_no_case_of_a_native_dtype_goes_to_the_reference(name: str) -> None:
    op = get_op(name)
    before = op.num_reference_calls

    for case in (case for case in ALL_CASES if case.op == name and "bf16" in case.dtypes):
        getattr(ops, name)(**case.inputs("bf16"))

    assert op.num_reference_calls == before


def test_experts_by_ctypes_give_the_bits_of_the_module(library: ctypes.CDLL) -> None:
    _native.use_isa("auto")  # the level of the library
    call = _call("q4_k", "q8", 3)
    want = ops.fused_experts(**call)
    out = np.empty_like(want)
    plain = [("f32", out), ("f32", call["x"]), ("i32", call["expert_ids"])]
    plain.append(("f32", call["expert_weights"]))
    stacks = [call[name] for name in ("gate", "up", "down")]
    args = [tensor(library, dtype, array) for dtype, array in plain]
    args += [tensor(library, stack.dtype.name, stack.data, stack.shape) for stack in stacks]

    orders = [None] * 3
    status = library.pyvt_fused_experts(*map(ctypes.byref, args), *orders, ctypes.c_char_p(b"q8"))

    assert status == OK, library.pyvt_last_error()
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["q8_0", "bf16"])
def test_native_packer_gives_the_tiles_of_the_reference(name: str) -> None:
    call = experts_call(name, (1, 1, 5, 64, 32), is_packed=False)(
        np.random.default_rng(3), np.dtype("f4")
    )
    stack = call["gate"]
    use_backend("numpy")
    kept = ops.prepack_weight(stack)
    use_backend("cpu")

    packed = ops.prepack_weight(stack)

    assert kept is stack
    assert packed.shape == (5, 32, 64)
    assert packed.dtype is DTYPES[name]
    want = experts_call(name, (1, 1, 5, 64, 32))(np.random.default_rng(3), np.dtype("f4"))["gate"]
    assert packed.data.tobytes() == want.data.tobytes()
