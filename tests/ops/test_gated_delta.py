"""Gated DeltaNet: chunks against the scan, states by slots, and calls that are refused."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.ops.gated_delta import key_head_of
from pyvt.testing.delta_chunks import delta_rule_by_chunks
from pyvt.testing.op_cases.state_slots import EVERY, in_place, slot_arrays

Array = np.ndarray[Any, Any]
NUM_KEY_HEADS, NUM_HEADS, KEY_SIZE, SIZE = 2, 6, 6, 5
NUM_SLOTS = 8


def inputs(num_tokens: int, seed: int = 0) -> dict[str, Any]:
    """Return what a rule reads of its tokens, in f64."""
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((2, num_tokens, NUM_KEY_HEADS, KEY_SIZE))
    q, k = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    g = -np.exp(rng.standard_normal((num_tokens, NUM_HEADS)) - 1)
    return {
        "q": q,
        "k": k,
        "v": rng.standard_normal((num_tokens, NUM_HEADS, SIZE)),
        "g": g,
        "beta": 1 / (1 + np.exp(-rng.standard_normal((num_tokens, NUM_HEADS)))),
    }


def states(seed: int = 1) -> Array:
    shape = (NUM_SLOTS, NUM_HEADS, KEY_SIZE, SIZE)
    return np.random.default_rng(seed).standard_normal(shape)


def scan(tokens: dict[str, Any], state: Array, slots: dict[str, Any], **named: Any) -> Array:
    return ops.gated_delta_rule(**tokens, state=state, **slots, scale=KEY_SIZE**-0.5, **named)


def by_value_head(x: Array, head_map: str) -> Array:
    return x[:, key_head_of(NUM_HEADS, NUM_KEY_HEADS, head_map)]


@pytest.mark.parametrize(
    ("chunk_size", "head_map", "lengths"),
    [
        (1, "grouped", (1, 2, 200)),
        (2, "tiled", (1, 2, 3, 199, 200)),
        (63, "grouped", range(1, 201)),
        (64, "tiled", range(1, 201)),
        (64, "grouped", range(1, 201)),
        (65, "grouped", range(1, 201)),
        pytest.param(1, "tiled", range(1, 201), marks=pytest.mark.slow),
        pytest.param(2, "grouped", range(1, 201), marks=pytest.mark.slow),
    ],
)
def test_chunks_agree_with_the_scan(chunk_size: int, head_map: str, lengths: Sequence[int]) -> None:
    """A scan of 200 tokens holds the outputs and states of every length up to 200."""
    tokens, state = inputs(200), np.zeros((201, NUM_HEADS, KEY_SIZE, SIZE))
    initial = state[200] = states()[0]
    slots = slot_arrays([200], [200]) | {"state_slots": np.arange(200, dtype=np.int32)}
    want = scan(tokens, state, slots, head_map=head_map)
    rows = tokens | {name: by_value_head(tokens[name], head_map) for name in "qk"}
    rows["q"] = rows["q"] * KEY_SIZE**-0.5

    for length in lengths:
        part = {name: x[:length] for name, x in rows.items()}

        out, last = delta_rule_by_chunks(**part, initial=initial, chunk_size=chunk_size)

        np.testing.assert_allclose(out, want[:length], rtol=0, atol=1e-12)
        np.testing.assert_allclose(last, state[length - 1], rtol=0, atol=1e-12)


def test_rule_of_a_prompt_in_parts_is_that_of_the_whole() -> None:
    tokens, whole, parts = inputs(9), states(), states()
    want = scan(tokens, whole, slot_arrays([9], num_slots=1))

    got = [
        scan(
            {name: x[begin:end] for name, x in tokens.items()},
            parts,
            slot_arrays([end - begin], [-1 if begin == 0 else 0], num_slots=1),
        )
        for begin, end in ((0, 4), (4, 5), (5, 9))
    ]

    np.testing.assert_array_equal(np.concatenate(got), want)
    np.testing.assert_array_equal(parts, whole)


def test_drafts_that_were_wrong_leave_no_trace() -> None:
    """A request goes on from the state behind its last right token."""
    tokens, state = inputs(7), states()
    right = {name: x[[0, 1, 2, 5, 6]] for name, x in tokens.items()}
    want = scan(right, state.copy(), slot_arrays([5], [7], num_slots=1))
    step = {name: x[:5] for name, x in tokens.items()}
    scan(step, state, slot_arrays([5], [7], EVERY, num_slots=5))

    behind_the_third = slot_arrays([2], [2], num_slots=1)
    got = scan({name: x[5:] for name, x in tokens.items()}, state, behind_the_third)

    np.testing.assert_array_equal(got, want[3:])


def test_rule_writes_the_slots_of_the_call_and_no_other() -> None:
    state = states()
    before = state.copy()

    scan(inputs(4), state, slot_arrays([3, 1], [5, -1], num_slots=4))

    is_changed = (state != before).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(np.flatnonzero(is_changed), [2, 3])


def test_request_that_starts_sees_nothing_of_its_slot() -> None:
    tokens, slots = inputs(2), in_place([2]) | {"initial_slots": np.array([-1], np.int32)}
    want = scan(tokens, states(), slots)

    got = scan(tokens, np.full_like(states(), np.nan), slots)

    np.testing.assert_array_equal(got, want)


def test_several_requests_go_on_from_one_slot() -> None:
    tokens = inputs(2)
    twice = {name: np.concatenate([x, x]) for name, x in tokens.items()}

    got = scan(twice, states(), slot_arrays([2, 2], [7, 7], num_slots=3))

    np.testing.assert_array_equal(got[:2], got[2:])


def refused(**changed: Any) -> Any:
    """Call the rule with two requests, of 1 and 2 tokens, and something changed."""
    call = {**inputs(3), "state": states(), **slot_arrays([1, 2], [0, 1], num_slots=4)}
    return ops.gated_delta_rule(**(call | {"scale": 1.0} | changed))


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        pytest.param(
            {"initial_slots": ints(0, 8)},
            r"initial_slots: expected values in \[-1, 8\), got 8",
            id="start outside",
        ),
        pytest.param(
            {"state_slots": ints(-2, 0, 1)},
            r"state_slots: expected values in \[-1, 8\), got -2",
            id="kept outside",
        ),
        pytest.param(
            {"state_slots": ints(3, -1, 3)},
            "state_slots: expected every slot once, got 3",
            id="twice",
        ),
        pytest.param(
            {"state_slots": ints(1, -1, 3)},
            "initial_slots: expected no slot that another request writes, got 1",
            id="start is written",
        ),
        pytest.param(
            {"cu_seqlens_q": ints(0, 1, 2)},
            "cu_seqlens_q: expected values from 0 to T=3",
            id="ends",
        ),
        pytest.param(
            {"cu_seqlens_q": ints(0, 4, 3)}, "cu_seqlens_q: expected values that do not", id="falls"
        ),
        pytest.param(
            {"cu_seqlens_q": ints(0, 3)}, r"cu_seqlens_q: expected R\+1=3, got 2", id="requests"
        ),
        pytest.param({"head_map": "other"}, "head_map: expected grouped or tiled", id="head map"),
        pytest.param(
            {"q": np.ones((3, 4, 6)), "k": np.ones((3, 4, 6))},
            "v: expected Hv a multiple of Hk=4, got 6",
            id="heads",
        ),
    ],
)
def test_rule_of_a_wrong_call_is_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError, match=rf"\[gated_delta_rule\] {text}"):
        refused(**changed)


def test_state_narrower_than_sums_is_refused() -> None:
    with pytest.raises(DTypeError, match="state: expected float64, got float32"):
        refused(state=states().astype(np.float32))


def test_output_over_the_state_is_refused() -> None:
    state = np.zeros((NUM_SLOTS, NUM_HEADS, KEY_SIZE, SIZE))

    with pytest.raises(ShapeError, match="out: expected memory apart from state"):
        refused(state=state, out=state[0, :, :3].transpose(1, 0, 2))
