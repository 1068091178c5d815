"""ForwardBatch: everything that a layer may ask about one step.

Dims: T tokens of all requests, R requests, G cache groups, Nk KV heads, D head size.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LayerCache = tuple[Array, Array]
NO_SLOTS: Array = np.empty(0, np.int32)


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """The indices of a step; tokens of a request lie side by side, in order.

    What varies between steps and steers a layer is an int here: a layer never branches on the
    value of an index array.

    Attributes:
        num_tokens: T.
        num_reqs: R.
        max_seqlen_q: the most tokens of a request in this step.
        max_seq_len: the longest sequence after this step.
        positions: ``[T]`` i64, place of each token in its sequence.
        slot_mapping: ``[G, T]`` i64, KV slot that each token's K and V go to; −1 for none.
        block_tables: ``[G, R, max_blocks]`` i32, KV blocks of each request. Entries before a
            group's window may hold anything.
        seq_lens: ``[R]`` i32, tokens of each request after this step.
        cu_seqlens_q: ``[R+1]`` i32, prefix sums of the tokens of each request.
        logits_indices: ``[num_logits]`` i32, the tokens whose logits are needed.
        kv_caches: for each layer K and V ``[num_blocks + 1, block_size, Nk, D]``; layers of
            different groups may share them, since a block belongs to one group at a time. For a
            layer with linear attention the states of its convolution ``[num_slots + 1, Kc − 1, C]``
            and of its delta rule ``[num_slots + 1, Hv, Dk, Dv]``.
        layer_groups: for each layer its cache group.
        initial_slots: ``[R]`` i32, slot of the state that each request goes on from; −1 for the
            empty one.
        state_slots: ``[T]`` i32, slot that takes the state behind each token; −1 for none. Both
            are empty in a model without linear attention.
    """

    num_tokens: int
    num_reqs: int
    max_seqlen_q: int
    max_seq_len: int
    positions: Array
    slot_mapping: Array
    block_tables: Array
    seq_lens: Array
    cu_seqlens_q: Array
    logits_indices: Array
    kv_caches: tuple[LayerCache, ...]
    layer_groups: tuple[int, ...]
    initial_slots: Array = field(default_factory=lambda: NO_SLOTS)
    state_slots: Array = field(default_factory=lambda: NO_SLOTS)
