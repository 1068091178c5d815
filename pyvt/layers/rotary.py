"""Rotary position embedding: the frequencies of each RoPE type, and the table that layers share.

Dims: R rotary size, P positions.
"""

import math
from collections.abc import Callable

import numpy as np

from pyvt import ops
from pyvt.config.rope import RopeConfig
from pyvt.ops.numerics import Array
from pyvt.tensor.dtype import DType


def _llama3(inv_freq: Array, rope: RopeConfig) -> Array:
    wavelength = 2 * math.pi / inv_freq
    original, low, high = (
        rope.original_max_position_embeddings,
        rope.low_freq_factor,
        rope.high_freq_factor,
    )
    share = (original / wavelength - low) / (high - low)
    blended = (1 - share) * inv_freq / rope.factor + share * inv_freq
    scaled = np.where(wavelength > original / low, inv_freq / rope.factor, blended)
    return np.where(wavelength < original / high, inv_freq, scaled)


def _linear(inv_freq: Array, rope: RopeConfig) -> Array:
    return inv_freq / rope.factor


def _yarn(inv_freq: Array, rope: RopeConfig) -> Array:
    size, original = rope.rotary_dim, rope.original_max_position_embeddings

    def border(num_rotations: float) -> float:
        return (
            size * math.log(original / (num_rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
    blended: Array = inv_freq / rope.factor * ramp + inv_freq * (1 - ramp)
    return blended


_SCALINGS: dict[str, Callable[[Array, RopeConfig], Array]] = {
    "default": lambda inv_freq, rope: inv_freq,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def inverse_frequencies(rope: RopeConfig) -> Array:
    """Return the angle per position of each pair of dims, f64 ``[R/2]``.

    Source: Su et al. 2021, arXiv:2104.09864; Peng et al. 2023 (yarn), arXiv:2309.00071;
    transformers ``modeling_rope_utils``.
    """
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    inv_freq = _SCALINGS[rope.rope_type](rope.theta**-exponents, rope)
    if rope.freq_divisors is not None:
        inv_freq = inv_freq / np.asarray(rope.freq_divisors, np.float64)
    return inv_freq


class RotaryEmbedding:
    """The table of cos and sin for positions below ``num_positions``; one for all layers."""

    __slots__ = ("cos_sin",)

    def __init__(self, rope: RopeConfig, num_positions: int, dtype: DType) -> None:
        self.cos_sin = ops.rope_cos_sin(
            inverse_frequencies(rope), num_positions, rope.attention_factor, dtype=dtype.name
        )
