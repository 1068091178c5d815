"""Index arrays of ops that keep a state for each request: lengths, starts, and what is kept."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import Inputs

# Behind which tokens of a request the state is kept: its last one, every one, or none.
LAST, EVERY, NONE = "last", "every", "none"


def slot_arrays(
    lengths: Sequence[int],
    initial: Sequence[int] | None = None,
    keep: str = LAST,
    num_slots: int | None = None,
) -> Inputs:
    """Return the index arrays of requests of these lengths.

    Requests start from ``initial``, from zeros where it is None. Slots are written in falling
    order, so that with ``initial`` rising they are mostly not those that a request started from.
    """
    cu_seqlens_q = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    state_slots = np.full(cu_seqlens_q[-1], -1, np.int32)
    kept = [end - 1 for length, end in zip(lengths, cu_seqlens_q[1:], strict=True) if length]
    if keep == EVERY:
        kept = list(range(cu_seqlens_q[-1]))
    if keep != NONE:
        free = len(kept) if num_slots is None else num_slots
        state_slots[kept] = free - 1 - np.arange(len(kept))
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "initial_slots": np.array([-1] * len(lengths) if initial is None else initial, np.int32),
        "state_slots": state_slots,
    }


def in_place(lengths: Sequence[int]) -> Inputs:
    """Return the index arrays of requests that each go on from and write a slot of their own."""
    slots = slot_arrays(lengths, range(len(lengths)))
    ends = slots["cu_seqlens_q"][1:][np.array(lengths, np.int64) > 0] - 1
    slots["state_slots"][ends] = np.flatnonzero(lengths)
    return slots


def num_slots_of(slots: Mapping[str, Any]) -> int:
    """Return the least number of slots that hold those named."""
    named = np.concatenate([slots["initial_slots"], slots["state_slots"], [-1]])
    return int(named.max()) + 1
