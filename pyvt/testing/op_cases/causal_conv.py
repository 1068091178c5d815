"""Cases of the causal_conv family."""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs, MakeInputs, normal, rows
from pyvt.testing.op_cases.state_slots import EVERY, NONE, in_place, num_slots_of, slot_arrays

Slots = dict[str, Any]


def _conv(slots: Slots, num_channels: int, num_taps: int = 4, *, bias: bool = False) -> MakeInputs:
    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        num_slots = max(1, num_slots_of(slots))
        inputs = {
            "x": normal(rng, dtype, len(slots["state_slots"]), num_channels),
            "weight": normal(rng, dtype, num_taps, num_channels, scale=0.5),
            "conv_state": normal(rng, dtype, num_slots, num_taps - 1, num_channels),
        }
        if bias:
            inputs["bias"] = normal(rng, dtype, num_channels)
        return inputs | {name: value.copy() for name, value in slots.items()}

    return make


def _strided(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """A state of one layer among others, and inputs that are a part of a wider projection."""
    inputs = _conv(in_place([1, 3]), 20)(rng, dtype)
    states = normal(rng, dtype, 2, 3, 3, 20)
    return inputs | {
        "x": normal(rng, dtype, 4, 31)[:, 5:25],
        "conv_state": states[:, 1],
    }


CASES = (
    *rows(
        {
            "one": _conv(slot_arrays([1]), 1, 2),
            "below_vector": _conv(slot_arrays([5]), 7),
            "from_state": _conv(slot_arrays([6], [0], num_slots=2), 17, bias=True),
            "decode": _conv(in_place([1] * 3), 33),
            "mixed": _conv(slot_arrays([1, 4, 0, 2, 1], [3, -1, 0, 4, 0], num_slots=9), 24),
            "every_state": _conv(slot_arrays([4, 2, 1], [0, -1, 0], EVERY, num_slots=8), 16),
            "first_of_shared": _conv(slot_arrays([3, 2], [5, 5], EVERY, num_slots=5), 9, 3),
            "state_not_kept": _conv(slot_arrays([3], [0], NONE), 8, 5),
            "empty": _conv(slot_arrays([0], [0]), 16),
            "no_requests": _conv(slot_arrays([]), 16),
        },
        "causal_conv1d",
        op_class="norm",
        mutates=("conv_state",),
    ),
    *rows(
        {"qwen36_decode": _conv(in_place([1] * 2), 8192), "strided": _strided},
        "causal_conv1d",
        dtypes=("f32", "bf16"),
        op_class="norm",
        mutates=("conv_state",),
        has_golden=False,
    ),
)
