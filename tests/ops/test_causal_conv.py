"""The causal convolution: parts of a prompt, states by slots, and calls that are refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.testing.op_cases.state_slots import EVERY, slot_arrays

Array = np.ndarray[Any, Any]
NUM_CHANNELS, NUM_TAPS = 6, 4


def arrays(num_tokens: int) -> tuple[Array, Array, Array]:
    """Return inputs, weight and eight states."""
    rng = np.random.default_rng(0)
    shapes = ((num_tokens, 6), (NUM_TAPS, 6), (8, NUM_TAPS - 1, 6))
    return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)  # type: ignore[return-value]


def test_last_tap_meets_the_token_itself() -> None:
    x, weight, state = arrays(3)
    weight[:-1] = 0

    got = ops.causal_conv1d(x, weight, state, **slot_arrays([3], [0]))

    np.testing.assert_array_equal(got, ops.silu(weight[-1] * x))


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 9), (0, 2, 9), (0, 8, 9)])
def test_convolution_of_a_prompt_in_parts_is_that_of_the_whole(cuts: tuple[int, ...]) -> None:
    x, weight, whole = arrays(9)
    parts = whole.copy()
    want = ops.causal_conv1d(x, weight, whole, **slot_arrays([9]))

    got = [
        ops.causal_conv1d(
            x[begin:end], weight, parts, **slot_arrays([end - begin], [-1 if begin == 0 else 0])
        )
        for begin, end in pairwise(cuts)
    ]

    np.testing.assert_array_equal(np.concatenate(got), want)
    np.testing.assert_array_equal(parts, whole)


def test_state_behind_every_token_is_the_raw_inputs_before_it() -> None:
    x, weight, state = arrays(5)
    before = np.concatenate([state[0], x])

    ops.causal_conv1d(x, weight, state, **slot_arrays([5], [0], EVERY, num_slots=5))

    for token, slot in enumerate((4, 3, 2, 1, 0)):
        np.testing.assert_array_equal(state[slot], before[token + 1 : token + 4])


def test_requests_do_not_see_each_other() -> None:
    x, weight, state = arrays(4)
    want = ops.causal_conv1d(x[2:], weight, state.copy(), **slot_arrays([2]))

    got = ops.causal_conv1d(x, weight, state, **slot_arrays([2, 2]))

    np.testing.assert_array_equal(got[2:], want)


def test_taps_that_the_state_does_not_hold_are_refused() -> None:
    x, weight, state = arrays(1)

    with pytest.raises(ShapeError, match="weight: expected at least 2 taps, one more than the P=3"):
        ops.causal_conv1d(x, weight[1:], state, **slot_arrays([1]))


def test_state_of_another_dtype_than_the_inputs_is_refused() -> None:
    """A state that rounds would make results depend on where a prompt is cut."""
    x, weight, state = arrays(1)

    with pytest.raises(DTypeError, match="conv_state: expected float32 as x, got float16"):
        ops.causal_conv1d(x, weight, state.astype(np.float16), **slot_arrays([1]))


def test_output_over_the_inputs_is_refused() -> None:
    """Later tokens read them."""
    x, weight, state = arrays(2)

    with pytest.raises(ShapeError, match="out: expected memory apart from x"):
        ops.causal_conv1d(x, weight, state, **slot_arrays([2]), out=x)
