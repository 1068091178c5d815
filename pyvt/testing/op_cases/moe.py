"""Cases of the mixture of experts; every expert has other values."""

from dataclasses import replace
from typing import Any

import numpy as np

from pyvt.ops.packed_layouts import LAYOUTS, pack_tiles
from pyvt.tensor.dtype import DTYPES, DType
from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows
from pyvt.testing.random_blocks import random_weight

_F32 = ("f32",)
_HALVES = ("f32", "bf16", "f16")
_BLOCKS = tuple(name for name in LAYOUTS if DTYPES[name].is_block)


def _logits(num_tokens: int, num_experts: int, top_k: int, *, renormalize: bool) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        # A permutation, since a half has few values and oracles order equal ones as they like.
        order = rng.permuted(np.tile(np.arange(num_experts), (num_tokens, 1)), axis=1)
        logits = (order * (8.0 / num_experts) - 4).astype(dtype)
        return {"logits": logits, "top_k": top_k, "renormalize": renormalize}

    return make


def _ties(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Equal logits, and rows with infinities and NaN."""
    logits = rng.integers(0, 3, (6, 20)).astype(dtype)
    logits[1] = 0
    logits[2, 3:] = -np.inf
    logits[3, 4] = np.inf
    logits[4, :5] = np.nan
    return {"logits": logits, "top_k": 5, "renormalize": True}


def _strided_logits(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    logits = normal(rng, dtype, 5, 40)[:, ::2]
    return {"logits": logits, "top_k": 3, "renormalize": False}


def _weight(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, int, int], *, is_packed: bool
) -> Any:
    """A stack of matrices whose products are near 1."""
    size = max(1, shape[2]) ** -0.5
    if dtype.numpy is None:
        weight: Any = random_weight(rng, dtype, *shape, magnitude=size)
    else:
        weight = normal(rng, dtype.numpy, *shape, scale=size)
    return pack_tiles(weight) if is_packed else weight


def experts_call(
    formats: str,
    shape: tuple[int, int, int, int, int],
    *,
    act: str = "none",
    is_packed: bool = True,
    id_dtype: Any = np.int32,
) -> MakeInputs:
    """A call of T tokens, K of E experts each, sizes H and I: ``shape`` is (T, K, E, H, I).

    ``formats`` names the dtypes of gate, up and down, or the one of all three.
    """
    num_tokens, top_k, num_experts, hidden, inner = shape
    of_gate, of_up, of_down = (DTYPES[name] for name in (formats.split() * 3)[:3])

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        ids = rng.permuted(np.tile(np.arange(num_experts), (num_tokens, 1)), axis=1)[:, :top_k]
        shares = rng.uniform(0.1, 1.0, ids.shape).astype(np.float32)
        wide, narrow = (num_experts, inner, hidden), (num_experts, hidden, inner)
        return {
            "x": normal(rng, dtype, num_tokens, hidden),
            "expert_ids": ids.astype(id_dtype),
            "expert_weights": shares / shares.sum(axis=1, keepdims=True),
            "gate": _weight(rng, of_gate, wide, is_packed=is_packed),
            "up": _weight(rng, of_up, wide, is_packed=is_packed),
            "down": _weight(rng, of_down, narrow, is_packed=is_packed),
            "act": act,
        }

    return make


def in_orders(make: MakeInputs, *together: str) -> MakeInputs:
    """The call with columns of stacks in other orders, each expert's in its own.

    The stacks that one text of ``together`` names have the same orders.
    """

    def made(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        inputs = make(rng, dtype)
        for names in (text.split() for text in together):
            num_experts, _, size = inputs[names[0]].shape
            own = np.tile(np.arange(size, dtype=np.int32), (num_experts, 1))
            columns = rng.permuted(own, axis=1)
            inputs |= {name: replace(inputs[name], columns=columns) for name in names}
        return inputs

    return made


def _hard_logits(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Rows that are all negative, equal, huge, far apart, or a last bit apart."""
    negative = -np.abs(normal(rng, dtype, 16)) - dtype.type(3)
    equal = np.full(16, -2.0, dtype)
    huge = np.where(np.arange(16) % 3 == 0, 1e4, -1e4).astype(dtype)
    near = np.full(16, 0.5, dtype)
    near[[3, 9, 12]] = np.nextafter(dtype.type(0.5), dtype.type(1))
    logits = np.stack([negative, equal, huge, huge[::-1], near])
    return {"logits": logits, "top_k": 5, "renormalize": True}


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Halves of a fused gate and up, and strided activations."""
    inputs = experts_call("f32", (5, 2, 4, 12, 20), is_packed=False)(rng, dtype)
    both = _weight(rng, DTYPES["f32"], (4, 40, 12), is_packed=False)
    inputs["gate"], inputs["up"] = both[:, :20], both[:, 20:]
    inputs["x"] = normal(rng, dtype, 5, 24)[:, ::2]
    return inputs


def _twice(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """A token that has an expert twice, and experts that no token has."""
    inputs = experts_call("f32", (3, 2, 6, 8, 8))(rng, dtype)
    inputs["expert_ids"] = np.array([[4, 4], [0, 4], [5, 0]], np.int64)
    return inputs


def _shared(num_tokens: int, hidden: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {
            "routed": normal(rng, dtype, num_tokens, hidden),
            "shared": normal(rng, dtype, num_tokens, hidden),
            "gate": normal(rng, dtype, num_tokens, 1, scale=3.0),
        }

    return make


def _strided_shared(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    return {
        "routed": normal(rng, dtype, 4, 30)[:, ::2],
        "shared": normal(rng, dtype, 15, 4).T,
        "gate": normal(rng, dtype, 4, 3)[:, 1:2],
    }


CASES = (
    *rows(
        {
            "one": _logits(1, 1, 1, renormalize=True),
            "top_2_of_8": _logits(3, 8, 2, renormalize=True),
            "as_they_are": _logits(3, 8, 2, renormalize=False),
            "all": _logits(2, 5, 5, renormalize=False),
            "odd": _logits(5, 33, 7, renormalize=True),
            "strided": _strided_logits,
            "no_tokens": _logits(0, 8, 2, renormalize=True),
            "top_8_of_128": _logits(9, 128, 8, renormalize=True),
        },
        "router_topk",
        op_class="router",
        takes_out=False,
    ),
    *rows(
        {
            "ties": _ties,
            "hard": _hard_logits,
            "top_8_of_256": _logits(33, 256, 8, renormalize=True),
        },
        "router_topk",
        op_class="router",
        takes_out=False,
        has_golden=False,
    ),
    *rows(
        {
            "one": experts_call("f32", (1, 1, 1, 1, 1)),
            "odd": experts_call("f32", (4, 2, 3, 17, 9)),
            "plain": experts_call("f32", (5, 2, 4, 12, 16), is_packed=False, id_dtype=np.int64),
            "mixed": experts_call("bf16 f16 f32", (6, 2, 3, 16, 10)),
            "strided": _strided,
            "twice": _twice,
            "no_tokens": experts_call("bf16", (0, 2, 4, 16, 16)),
        },
        "fused_experts",
        op_class="linear",
    ),
    *rows(
        {
            "q8_0": experts_call("q8_0", (3, 2, 4, 64, 32)),
            "q4_1_q5_0": experts_call("q4_1 q4_0 q5_0", (2, 2, 4, 32, 64)),
            "blocks": experts_call("q8_0 q4_0 f32", (3, 2, 4, 32, 32), is_packed=False),
        },
        "fused_experts",
        op_class="linear",
        dtypes=_F32,
    ),
    *rows(
        {
            "q8_0_q8": experts_call("q8_0", (3, 2, 4, 64, 32), act="q8"),
            "q4_1_q5_0_q8": experts_call("q4_1 q4_0 q5_0", (2, 2, 4, 32, 64), act="q8"),
            "blocks_q8": experts_call(
                "q8_0 q4_0 f32", (3, 2, 4, 32, 32), act="q8", is_packed=False
            ),
        },
        "fused_experts",
        op_class="experts_q8",
        dtypes=_F32,
    ),
    *rows(
        {
            "no_experts_of_a_token": experts_call("f32", (3, 0, 4, 16, 16)),
            "odd_tokens": experts_call("f32", (21, 3, 7, 33, 19)),
            "no_hidden": experts_call("f32", (3, 2, 4, 0, 16)),
            "no_inner": experts_call("f32", (3, 2, 4, 16, 0)),
            "bf16_tokens": experts_call("bf16", (40, 4, 8, 96, 48)),
            "f16_tokens": experts_call("f16 f16 bf16", (65, 3, 5, 72, 40)),
        },
        "fused_experts",
        op_class="linear",
        dtypes=_HALVES,
        has_golden=False,
    ),
    *rows(
        {
            f"{name}_tokens": experts_call(name, (19, 3, 5, 256, 256))
            for name in ("q4_0", "q4_k", "q6_k", "iq2_s", "iq4_nl")
        }
        | {
            "in_orders": in_orders(experts_call("int4_g32", (3, 2, 4, 64, 32)), "gate up", "down"),
            "in_orders_apart": in_orders(
                experts_call("q8_0 q4_0 f32", (30, 2, 4, 64, 32), is_packed=False), "gate", "up"
            ),
        },
        "fused_experts",
        op_class="linear",
        dtypes=_F32,
        has_golden=False,
    ),
    *rows(
        {f"{name}_q8": experts_call(name, (5, 2, 3, 256, 256), act="q8") for name in _BLOCKS}
        | {
            "q4_k_m_q8": experts_call("q4_k q4_k q6_k", (1, 4, 6, 512, 256), act="q8"),
            "q4_k_tokens_q8": experts_call("q4_k", (70, 2, 3, 256, 256), act="q8"),
            "in_orders_tokens_q8": in_orders(
                experts_call("int4_g32", (70, 2, 3, 160, 96), act="q8"), "gate up", "down"
            ),
            "in_orders_mixed_q8": in_orders(
                experts_call("int8_g32 fp8_g32 nvfp4_g32", (9, 2, 3, 160, 96), act="q8"),
                "gate",
                "up",
                "down",
            ),
            "in_orders_of_up_q8": in_orders(
                experts_call("int4_g128", (3, 2, 3, 256, 128), act="q8"), "up"
            ),
        },
        "fused_experts",
        op_class="experts_q8",
        dtypes=("f32", "bf16"),
        has_golden=False,
    ),
    *rows(
        {
            "one": _shared(1, 1),
            "odd": _shared(5, 33),
            "strided": _strided_shared,
            "no_tokens": _shared(0, 8),
        },
        "add_shared_expert",
    ),
    *rows({"hidden_2048": _shared(3, 2048)}, "add_shared_expert", has_golden=False),
)
