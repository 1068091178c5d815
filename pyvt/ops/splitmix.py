"""The counter-based generator: random bits are a function of a key, never of a state.

Output ``i`` of SplitMix64 from ``state`` is ``mix(state + (i + 1) · G)`` modulo 2⁶⁴, so any output
is had without those before it. A draw is keyed in three steps: the seed is mixed, output
``position`` of that is the state of a row, and output ``token`` of the row is the 64 bits of one
token.

Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"; the constants
are those of Java's ``SplittableRandom``.
"""

import numpy as np

from pyvt.ops.numerics import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


def _mix(z: Array) -> Array:
    z = z ^ (z >> np.uint64(30))
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    z ^= z >> np.uint64(31)
    return z


def splitmix64(state: Array, index: Array) -> Array:
    """Return output ``index`` of SplitMix64 from ``state``; u64 arrays that broadcast."""
    return _mix(state + (index + _ONE) * _GOLDEN)


def row_states(seeds: Array, positions: Array) -> Array:
    """Return the state of every row from its seed u64 ``[R]`` and position i64 ``[R]``."""
    return splitmix64(_mix(seeds), positions.astype(np.uint64))


def uniforms(states: Array, token_ids: Array) -> Array:
    """Return f64 uniforms in (0, 1), both ends excluded, for tokens of rows; they broadcast.

    ``u = (n + ½) / 2⁵²`` with the upper 52 bits ``n`` of the token's output: exact in f64.
    """
    bits = splitmix64(states, token_ids.astype(np.uint64))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
