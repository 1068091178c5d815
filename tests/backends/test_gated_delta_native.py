"""Linear attention on the native backend: bits that depend on nothing but the tokens, and plans."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import selected_backend
from pyvt.testing.op_cases.state_slots import EVERY, in_place, slot_arrays

pytestmark = [
    pytest.mark.native,
]

Array = np.ndarray[Any, Any]
NUM_KEYS, NUM_VALUES, KEY_SIZE, SIZE, NUM_TAPS = 2, 6, 24, 40, 4
NUM_CHANNELS = 2 * NUM_KEYS * KEY_SIZE + NUM_VALUES * SIZE
NUM_TOKENS, NUM_SEQUENCES = 150, 3


@pytest.fixture(autouse=True)
def _native_backend() -> Iterator[None]:
    use_backend("cpu")
    yield
    use_backend("numpy")


class Layer:
    """What a layer keeps, in f32: parameters, and states of eight slots."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.weight = rng.standard_normal((NUM_TAPS, NUM_CHANNELS), np.float32)
        self.decay_rate = -np.exp(rng.standard_normal(NUM_VALUES, np.float32) - 2)
        self.dt_bias = rng.standard_normal(NUM_VALUES, np.float32)
        self.norm = rng.standard_normal(SIZE, np.float32)
        self.conv_state = np.full((8, NUM_TAPS - 1, NUM_CHANNELS), np.nan, np.float32)
        self.y = np.empty(0, np.float32)  # kept, since a plan refers to it
        self.state = np.full((8, NUM_VALUES, KEY_SIZE, SIZE), np.nan, np.float32)

    def forward(self, tokens: Array, slots: dict[str, Array]) -> Array:
        """Return ``[T, Hv, Dv]`` for the projections of T tokens."""
        x, z, a, b = np.split(tokens, np.cumsum([NUM_CHANNELS, NUM_VALUES * SIZE, NUM_VALUES]), 1)
        self.y = ops.causal_conv1d(x, self.weight, self.conv_state, **slots)
        q, k, v = np.split(self.y, [NUM_KEYS * KEY_SIZE, 2 * NUM_KEYS * KEY_SIZE], axis=1)
        parameters = (self.decay_rate, self.dt_bias, self.norm, 1e-6)
        return ops.gated_delta_net(
            q.reshape(-1, NUM_KEYS, KEY_SIZE),
            k.reshape(-1, NUM_KEYS, KEY_SIZE),
            v.reshape(-1, NUM_VALUES, SIZE),
            z.reshape(-1, NUM_VALUES, SIZE),
            a,
            b,
            *parameters,
            self.state,
            **slots,
        )


def projections(num_tokens: int, seed: int = 1) -> Array:
    size = NUM_CHANNELS + NUM_VALUES * (SIZE + 2)
    return np.random.default_rng(seed).standard_normal((num_tokens, size), np.float32)


SEQUENCES = [projections(NUM_TOKENS, seed) for seed in range(NUM_SEQUENCES)]


@pytest.fixture(scope="module")
def alone() -> tuple[list[Array], Layer]:
    """Each sequence by itself in one call, and the states behind them in slots 0, 1, 2."""
    use_backend("cpu")
    layer, outputs = Layer(), []
    for slot, tokens in enumerate(SEQUENCES):
        slots = slot_arrays([NUM_TOKENS], num_slots=slot + 1)
        outputs.append(layer.forward(tokens, slots))
    return outputs, layer


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint32)


@st.composite
def _steps(draw: st.DrawFn) -> list[list[int]]:
    """Steps that take every sequence to its end, in parts of any size."""
    left, steps = [NUM_TOKENS] * NUM_SEQUENCES, []
    while any(left):
        sizes = st.one_of(st.just(1), st.integers(0, 90))
        step = [min(count, draw(sizes)) for count in left]
        left = [count - taken for count, taken in zip(left, step, strict=True)]
        steps.append(step)
        if len(steps) > 8:
            steps.append(left)
            break
    return steps


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=_steps(), num_threads=st.integers(1, 4))
def test_bits_depend_on_no_batch_chunk_or_thread(
    alone: tuple[list[Array], Layer], steps: list[list[int]], num_threads: int
) -> None:
    from pyvt.backends.cpu import _native

    layer, done = Layer(), [0] * NUM_SEQUENCES
    got: list[list[Array]] = [[] for _ in SEQUENCES]
    _native.set_num_threads(num_threads)
    for step in steps:
        slots = in_place(step)
        is_new = [count == 0 for count in done]
        slots["initial_slots"][is_new] = -1
        parts = [x[d : d + n] for x, d, n in zip(SEQUENCES, done, step, strict=True)]
        out = np.split(layer.forward(np.concatenate(parts), slots), np.cumsum(step)[:-1])
        for rows, part in zip(got, out, strict=True):
            rows.append(part)
        done = [d + n for d, n in zip(done, step, strict=True)]
    _native.set_num_threads(0)

    outputs, whole = alone
    for rows, want in zip(got, outputs, strict=True):
        np.testing.assert_array_equal(bits(np.concatenate(rows)), bits(want))
    np.testing.assert_array_equal(bits(layer.state), bits(whole.state))
    np.testing.assert_array_equal(bits(layer.conv_state), bits(whole.conv_state))


def test_step_with_drafts_keeps_the_bits_of_every_boundary() -> None:
    """Going on from the state behind the m-th token is the same as never having seen the rest."""
    tokens, layer = SEQUENCES[0], Layer()
    layer.forward(tokens[:10], slot_arrays([10], num_slots=8))
    layer.forward(tokens[10:15], slot_arrays([5], [7], EVERY, num_slots=5))

    for num_right, slot in ((1, 4), (3, 2), (5, 0)):
        want = Layer()
        want.forward(tokens[: 10 + num_right], slot_arrays([10 + num_right]))
        np.testing.assert_array_equal(bits(layer.state[slot]), bits(want.state[0]))
        np.testing.assert_array_equal(bits(layer.conv_state[slot]), bits(want.conv_state[0]))


def test_plan_reads_tokens_and_slots_when_it_runs() -> None:
    make_plan = selected_backend().make_plan
    assert make_plan is not None, "the native backend records"
    want, layer = Layer(), Layer()
    for each in (want, layer):
        each.forward(np.concatenate(SEQUENCES), in_place([NUM_TOKENS] * 3) | _fresh(3))
    tokens, slots = projections(2, 7), in_place([1, 1])
    plan = make_plan()
    plan.start()
    out = layer.forward(tokens, slots)
    plan.stop()
    want.forward(tokens, slots)

    np.copyto(tokens, projections(2, 8))
    np.copyto(slots["initial_slots"], [2, -1])
    np.copyto(slots["state_slots"], [5, 6])
    plan.run()

    np.testing.assert_array_equal(bits(out), bits(want.forward(tokens, slots)))
    np.testing.assert_array_equal(bits(layer.state), bits(want.state))
    np.testing.assert_array_equal(bits(layer.conv_state), bits(want.conv_state))


def _fresh(num_reqs: int) -> dict[str, Array]:
    return {"initial_slots": np.full(num_reqs, -1, np.int32)}
