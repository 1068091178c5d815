"""Cases of the gated_delta family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows
from pyvt.testing.op_cases.state_slots import EVERY, NONE, in_place, num_slots_of, slot_arrays

Slots = dict[str, Any]
Sizes = tuple[int, int, int, int]
StateCase = tuple[Slots, Sizes, str]
ONE = (1, 1, 1, 1)  # key heads, value heads, size of a key, of a value
SMALL = (2, 6, 8, 11)
SQUARE = (1, 2, 16, 16)
QWEN = (2, 4, 128, 128)
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 19.0, 20.5, 100.0, -100.0, np.inf, -np.inf, np.nan)


def _wide(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _gate(num_tokens: int, num_heads: int) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        return {
            "a": normal(rng, dtype, num_tokens, num_heads, scale=2.0),
            "b": normal(rng, dtype, num_tokens, num_heads),
            "decay_rate": -np.exp(normal(rng, _wide(dtype), num_heads)),
            "dt_bias": normal(rng, dtype, num_heads),
        }

    return make


def _special_gate(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    a = np.array([_SPECIAL], dtype)
    rate = np.full(len(_SPECIAL), -0.5, _wide(dtype))
    return {"a": a, "b": a[:, ::-1], "decay_rate": rate, "dt_bias": np.zeros_like(a[0])}


def _heads(rng: np.random.Generator, dtype: "np.dtype[Any]", slots: Slots, sizes: Sizes) -> Inputs:
    num_tokens, (num_key_heads, num_heads, key_size, size) = len(slots["state_slots"]), sizes
    num_slots = max(1, num_slots_of(slots))
    return {
        "q": normal(rng, dtype, num_tokens, num_key_heads, key_size, scale=key_size**-0.5),
        "k": normal(rng, dtype, num_tokens, num_key_heads, key_size, scale=key_size**-0.5),
        "v": normal(rng, dtype, num_tokens, num_heads, size),
        "state": normal(rng, _wide(dtype), num_slots, num_heads, key_size, size, scale=0.3),
        **{name: value.copy() for name, value in slots.items()},
    }


def rule_call(slots: Slots, sizes: Sizes, head_map: str) -> MakeInputs:
    """Return what makes the inputs of ``gated_delta_rule``."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        inputs = _heads(rng, dtype, slots, sizes)
        gates = (len(slots["state_slots"]), sizes[1])
        beta = 1 / (1 + np.exp(-normal(rng, _wide(dtype), *gates)))
        return inputs | {
            "g": -np.exp(normal(rng, _wide(dtype), *gates) - 2),
            "beta": beta,
            "scale": sizes[2] ** -0.5,
            "head_map": head_map,
        }

    return make


def net_call(slots: Slots, sizes: Sizes, head_map: str) -> MakeInputs:
    """Return what makes the inputs of ``gated_delta_net``."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        num_tokens, (_, num_heads, _, size) = len(slots["state_slots"]), sizes
        return {
            **_heads(rng, dtype, slots, sizes),
            **_gate(num_tokens, num_heads)(rng, dtype),
            "z": normal(rng, dtype, num_tokens, num_heads, size),
            "weight": normal(rng, dtype, size),
            "eps": 1e-6,
            "head_map": head_map,
        }

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Views as a layer has them: parts of a row of channels, the state of one layer of several."""
    inputs = net_call(in_place([1, 3]), SMALL, "grouped")(rng, dtype)
    channels = normal(rng, dtype, 4, 2 * 2 * 8 + 6 * 11)
    states = normal(rng, _wide(dtype), 2, 3, 6, 8, 11, scale=0.3)
    return inputs | {
        "q": channels[:, :16].reshape(4, 2, 8),
        "k": channels[:, 16:32].reshape(4, 2, 8),
        "v": channels[:, 32:].reshape(4, 6, 11),
        "a": normal(rng, dtype, 4, 12)[:, ::2],
        "b": normal(rng, dtype, 4, 12)[:, 1::2],
        "state": states[:, 1],
    }


GATE_CASES = {
    "one": _gate(1, 1),
    "below_vector": _gate(3, 7),
    "odd": _gate(2, 33),
    "special": _special_gate,
    "empty": _gate(0, 4),
}
# The same lengths and starts for the rule alone and for all of the layer.
STATE_CASES: dict[str, StateCase] = {
    "one": (slot_arrays([1]), ONE, "grouped"),
    "tokens": (slot_arrays([5]), SMALL, "grouped"),
    "from_state": (slot_arrays([4], [0], num_slots=2), SMALL, "grouped"),
    "tiled": (slot_arrays([4], [0], num_slots=2), SMALL, "tiled"),
    "decode": (in_place([1] * 2), SQUARE, "grouped"),
    "mixed": (slot_arrays([1, 4, 0, 2, 1], [3, -1, 0, 4, 0], num_slots=9), (1, 2, 7, 9), "grouped"),
    "every_state": (slot_arrays([4, 2], [0, -1], EVERY, num_slots=7), (1, 3, 9, 8), "grouped"),
    "state_not_kept": (slot_arrays([3], [0], NONE), (2, 2, 4, 17), "grouped"),
    "empty": (slot_arrays([0], [0]), SMALL, "grouped"),
    "no_requests": (slot_arrays([]), SMALL, "grouped"),
}
LARGE_CASES: dict[str, StateCase] = {
    "qwen36_heads": (slot_arrays([1, 3], [0, -1], num_slots=3), QWEN, "grouped"),
    "qwen36_tiled": (slot_arrays([2], [0]), (2, 6, 128, 128), "tiled"),
    "wide_value": (slot_arrays([3]), (1, 2, 16, 150), "grouped"),
    "blocks_of_tokens": (slot_arrays([130, 3]), (1, 2, 32, 40), "grouped"),
    "wide_keys": (slot_arrays([1, 3], [0, -1], num_slots=3), (1, 2, 160, 24), "grouped"),
}

CASES = (
    *rows(GATE_CASES, "gdn_gate", takes_out=False),
    *rows(
        {name: rule_call(*row) for name, row in STATE_CASES.items()},
        "gated_delta_rule",
        op_class="delta_rule",
        mutates=("state",),
    ),
    *rows(
        {name: rule_call(*row) for name, row in LARGE_CASES.items()},
        "gated_delta_rule",
        dtypes=("f32", "bf16"),
        op_class="delta_rule",
        mutates=("state",),
        has_golden=False,
    ),
    *rows(
        {name: net_call(*row) for name, row in STATE_CASES.items()},
        "gated_delta_net",
        op_class="delta_rule",
        mutates=("state",),
    ),
    *rows(
        {name: net_call(*row) for name, row in LARGE_CASES.items()} | {"strided": _strided},
        "gated_delta_net",
        dtypes=("f32", "bf16"),
        op_class="delta_rule",
        mutates=("state",),
        has_golden=False,
    ),
)
