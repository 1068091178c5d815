"""Slots of states of fixed size, as the ops of linear attention read and write them.

An array of states has one slot a state. A call names, for every request, the slot that it starts
from, and for every token the slot that takes the state behind it; −1 is none. So a request may
start from a slot that others share, a step may keep the states of several boundaries, and a
request whose drafts were wrong goes on from the slot of its last right token.

Dims: T tokens of all requests, R requests.
"""

import numpy as np

from pyvt.dispatch import Check
from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import I32


def check_slots(
    check: Check, cu_seqlens_q: Array, initial_slots: Array, state_slots: Array, num_slots: int
) -> None:
    """Check the index arrays of a call whose T is bound.

    Raises:
        ShapeError: where they contradict T or the number of slots, where two tokens write one slot,
            or where a request starts from a slot that another one writes.
        DTypeError.
    """
    check.tensor("initial_slots", initial_slots, "R", (I32,))
    check.dims["R+1"] = check.dims["R"] + 1
    check.tensor("cu_seqlens_q", cu_seqlens_q, "R+1", (I32,))
    check.tensor("state_slots", state_slots, "T", (I32,))
    check.index("initial_slots", initial_slots, num_slots, low=-1)
    check.index("state_slots", state_slots, num_slots, low=-1)
    if not isinstance(state_slots, np.ndarray):
        return
    num_tokens = check.dims["T"]
    if cu_seqlens_q[0] != 0 or cu_seqlens_q[-1] != num_tokens:
        ends = (int(cu_seqlens_q[0]), int(cu_seqlens_q[-1]))
        raise check.fail("cu_seqlens_q", f"values from 0 to T={num_tokens}", ends)
    if (np.diff(cu_seqlens_q) < 0).any():
        raise check.fail("cu_seqlens_q", "values that do not fall", cu_seqlens_q.tolist())
    _check_writers(check, cu_seqlens_q, initial_slots, state_slots)


def _check_writers(
    check: Check, cu_seqlens_q: Array, initial_slots: Array, state_slots: Array
) -> None:
    """Check that no result depends on which request comes first."""
    tokens = np.flatnonzero(state_slots >= 0)
    requests = np.searchsorted(cu_seqlens_q, tokens, side="right") - 1
    writers: dict[int, int] = {}
    for slot, request in zip(state_slots[tokens].tolist(), requests.tolist(), strict=True):
        if slot in writers:
            raise check.fail("state_slots", "every slot once", slot)
        writers[slot] = request
    for request, slot in enumerate(initial_slots.tolist()):
        if writers.get(slot, request) != request:
            raise check.fail("initial_slots", "no slot that another request writes", slot)
