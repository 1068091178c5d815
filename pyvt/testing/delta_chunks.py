"""The gated delta rule by chunks: a second way to the same numbers, for checks of the scan.

Within a chunk of c tokens the corrections are the solution of one triangular system; the state
moves once a chunk. Dims: T tokens of one request, Hv heads, Dk size of a key, Dv of a value.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def delta_rule_by_chunks(
    q: Array, k: Array, v: Array, g: Array, beta: Array, initial: Array, chunk_size: int
) -> tuple[Array, Array]:
    """Return the outputs ``[T, Hv, Dv]`` of one request and the state ``[Hv, Dk, Dv]`` behind it.

    Args:
        q: ``[T, Hv, Dk]``, scaled; one for each value head, as the others.
        k: ``[T, Hv, Dk]``.
        v: ``[T, Hv, Dv]``.
        g: ``[T, Hv]``, log of the decay.
        beta: ``[T, Hv]``.
        initial: ``[Hv, Dk, Dv]``, the state before the first token.
        chunk_size: tokens of a chunk, at least 1; the last chunk may have fewer.

    Source: Yang et al. 2024, arXiv:2412.06464, section 3.3; transformers
    ``torch_chunk_gated_delta_rule``.
    """
    out, state = np.empty_like(v), initial
    for first in range(0, len(q), chunk_size):
        chunk = slice(first, first + chunk_size)
        by_head = [np.moveaxis(x[chunk], 1, 0) for x in (q, k, v, g, beta)]
        values, state = _chunk(by_head, state)
        out[chunk] = np.moveaxis(values, 0, 1)
    return out, state


def _chunk(by_head: list[Array], state: Array) -> tuple[Array, Array]:
    """Return the outputs ``[Hv, c, Dv]`` of a chunk, and the next state."""
    q, k, v, g, beta = by_head
    total = np.cumsum(g, axis=1)
    is_seen = np.tri(g.shape[1], dtype=bool)
    # Masked before the exponential, which would overflow above the diagonal.
    decay = np.exp(np.where(is_seen, total[:, :, None] - total[:, None, :], -np.inf))
    weighted, keys = beta[:, :, None] * k, np.swapaxes(k, 1, 2)
    system = np.eye(g.shape[1]) + np.tril((weighted @ keys) * decay, -1)
    known = (np.exp(total)[:, :, None] * weighted) @ state
    corrections = np.linalg.solve(system, beta[:, :, None] * v - known)
    out = (np.exp(total)[:, :, None] * q) @ state + ((q @ keys) * decay) @ corrections
    to_end = np.exp(total[:, -1:] - total)[:, None, :]
    return out, np.exp(total[:, -1])[:, None, None] * state + (keys * to_end) @ corrections
