"""RopeConfig: rotary position embedding, from the spellings of config.json and of GGUF.

Dims: D head size, R rotary size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyvt.config.keys import Keys, unknown_name
from pyvt.errors import ConfigError, UnsupportedError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_ALIASES = {"mrope": "default", "none": "default"}
DEFAULT_THETA = 10000.0
_LEAST = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """The inverse frequencies and the scale of cos and sin, all defaults filled in.

    Attributes:
        rope_type: one of ``ROPE_TYPES``.
        theta: base of the frequencies.
        rotary_dim: R, the first dims of a head that turn.
        factor: context extension of linear, llama3 and yarn.
        original_max_position_embeddings: context length of pre-training, for llama3 and yarn.
        low_freq_factor, high_freq_factor: borders of llama3.
        beta_fast, beta_slow, truncate: ramp of yarn.
        attention_factor: factor of cos and sin; 1 unless yarn.
        freq_divisors: ``[R/2]`` divisors of the frequencies that a GGUF file holds, or None.
    """

    rotary_dim: int
    rope_type: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    freq_divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ConfigError(
                f"[rope] rotary_dim: expected an even number above 0, got {self.rotary_dim}",
                field="rotary_dim",
            )
        if self.rope_type == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ConfigError(
                f"[rope] high_freq_factor: expected more than low_freq_factor="
                f"{self.low_freq_factor}, got {self.high_freq_factor}",
                field="high_freq_factor",
            )
        if self.rope_type == "yarn" and self.theta <= 1:
            raise ConfigError(
                f"[rope] rope_theta: expected more than 1 with yarn, got {self.theta!r}",
                field="rope_theta",
            )
        self._check_range()
        if self.freq_divisors is not None:
            self._check_divisors(self.freq_divisors)

    def _check_range(self) -> None:
        """Refuse numbers that are finite, and whose quotients or products are not."""
        for name in ("factor", "beta_fast", "beta_slow", "attention_factor"):
            value = getattr(self, name)
            if not _LEAST <= abs(value) <= 1 / _LEAST:
                raise ConfigError(
                    f"[rope] {name}: expected a number from {_LEAST:g} to {1 / _LEAST:g}, "
                    f"got {value!r}",
                    field=name,
                )

    def _check_divisors(self, divisors: tuple[float, ...]) -> None:
        if len(divisors) != self.rotary_dim // 2:
            raise ConfigError(
                f"[rope] rope_freqs: expected {self.rotary_dim // 2} divisors, got {len(divisors)}",
                field="rope_freqs",
            )
        bad = [d for d in divisors if not math.isfinite(d) or d <= 0]
        if bad:
            raise ConfigError(
                f"[rope] rope_freqs: expected finite divisors above 0, got {bad[0]!r}",
                field="rope_freqs",
            )


def _rope_type(subject: str, field: str, name: Any) -> str:
    rope_type = _ALIASES.get(str(name), str(name))
    if rope_type not in ROPE_TYPES:
        raise UnsupportedError(unknown_name(subject, field, name, ROPE_TYPES))
    return rope_type


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def rope_from_hf(
    config: Mapping[str, Any], head_dim: int, max_positions: int, share: float | None = None
) -> RopeConfig:
    """Return the RoPE of a config.json, in any of its three spellings.

    ``rope_parameters`` (transformers 5), else ``rope_scaling`` with ``rope_type`` or ``type``, else
    plain keys. ``share`` is the part of a head that turns where the file does not say; None is a
    family whose heads always turn whole. Raises ConfigError for a bad value, UnsupportedError for
    an unknown type.
    """
    top = Keys("config.json", config)
    block = top.block("rope_parameters") or top.block("rope_scaling") or {}
    if any(isinstance(value, dict) for value in block.values()):
        raise UnsupportedError(
            "[config.json] rope_parameters: expected one block for all layers, "
            f"got one for each of {', '.join(block)}"
        )
    keys = Keys("config.json", block, {"rope_theta": config.get("rope_theta")})
    name = block.get("rope_type") or block.get("type") or "default"
    rope_type = _rope_type("config.json", "rope_type", name)
    theta = keys.number("rope_theta", DEFAULT_THETA)
    rotary_dim = _rotary_dim(Keys("config.json", block, config), head_dim, share)
    check_sections(keys, "mrope_section", rotary_dim)
    if rope_type == "default":
        return RopeConfig(rotary_dim=rotary_dim, theta=theta)
    if rope_type == "linear":
        factor = keys.number("factor")
        return RopeConfig(rotary_dim=rotary_dim, rope_type=rope_type, theta=theta, factor=factor)
    original = Keys("config.json", block, config).size(
        "original_max_position_embeddings", max_positions
    )
    if rope_type == "llama3":
        return RopeConfig(
            rotary_dim=rotary_dim,
            rope_type=rope_type,
            theta=theta,
            factor=keys.number("factor"),
            original_max_position_embeddings=original,
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
        )
    return _yarn_from_hf(keys, rotary_dim, theta, original, max_positions)


def _rotary_dim(keys: Keys, head_dim: int, share: float | None) -> int:
    factor = keys.number("partial_rotary_factor", share or 1.0)
    if share is None and factor != 1.0:
        raise UnsupportedError(
            str(keys.error("partial_rotary_factor", "1.0 for this family", factor))
        )
    if factor > 1.0:
        raise keys.error("partial_rotary_factor", "a number above 0 up to 1", factor)
    return int(head_dim * factor)


def check_sections(keys: Keys, name: str, rotary_dim: int) -> None:
    """Check the sections of a rotary embedding for images; text turns by one position in all.

    They are three counts of frequencies, in GGUF with a fourth of 0, that add up to half of
    ``rotary_dim``. Raises ConfigError.
    """
    sections = keys.items(name)
    is_counts = all(type(count) is int and count >= 0 for count in sections)
    if sections and (
        not is_counts or len(sections) not in (3, 4) or sum(sections) != rotary_dim // 2
    ):
        raise keys.error(name, f"3 counts with the sum {rotary_dim // 2}", list(sections))


def _yarn_from_hf(
    keys: Keys, rotary_dim: int, theta: float, original: int, max_positions: int
) -> RopeConfig:
    factor = keys.number("factor", max_positions / original)
    attention_factor = keys.optional_number("attention_factor")
    if attention_factor is None:
        mscale = keys.optional_number("mscale")
        mscale_all_dim = keys.optional_number("mscale_all_dim")
        attention_factor = _yarn_magnitude(factor, 1.0)
        if mscale and mscale_all_dim:
            divisor = _yarn_magnitude(factor, mscale_all_dim)
            if divisor == 0:
                raise keys.error("mscale_all_dim", "a magnitude other than 0", mscale_all_dim)
            attention_factor = _yarn_magnitude(factor, mscale) / divisor
    return RopeConfig(
        rotary_dim=rotary_dim,
        rope_type="yarn",
        theta=theta,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=keys.number("beta_fast", 32.0),
        beta_slow=keys.number("beta_slow", 1.0),
        truncate=keys.boolean("truncate", True),
        attention_factor=attention_factor,
    )


def rope_from_gguf(
    keys: Keys,
    head_dim: int,
    max_positions: int,
    freq_divisors: Sequence[float] | None,
    share: float | None = None,
) -> RopeConfig:
    """Return the RoPE of GGUF metadata; ``keys`` reads behind the architecture's prefix.

    llama3 is not a scaling type there: the file holds divisors of the frequencies instead.
    ``share`` of None is a family whose heads always turn whole.
    """
    rotary_dim = keys.size("rope.dimension_count", head_dim)
    if rotary_dim != head_dim and share is None:
        raise keys.error("rope.dimension_count", f"the head size {head_dim}", rotary_dim)
    check_sections(keys, "rope.dimension_sections", rotary_dim)
    theta = keys.number("rope.freq_base", DEFAULT_THETA)
    divisors = None if freq_divisors is None else tuple(float(d) for d in freq_divisors)
    name = keys.get("rope.scaling.type") or "none"
    rope_type = _rope_type("GGUF metadata", "rope.scaling.type", name)
    if rope_type == "llama3":
        raise keys.error("rope.scaling.type", "one of none, linear, yarn", name)
    if rope_type == "default":
        return RopeConfig(rotary_dim=rotary_dim, theta=theta, freq_divisors=divisors)
    factor = keys.number("rope.scaling.factor")
    if rope_type == "linear":
        return RopeConfig(
            rotary_dim=rotary_dim,
            rope_type=rope_type,
            theta=theta,
            factor=factor,
            freq_divisors=divisors,
        )
    for name in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"):
        if keys.number(name, 1.0) != 1.0:
            raise UnsupportedError(str(keys.error(name, "1.0", keys.get(name))))
    return RopeConfig(
        rotary_dim=rotary_dim,
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_position_embeddings=keys.size(
            "rope.scaling.original_context_length", max_positions
        ),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=_yarn_magnitude(factor, 1.0)
        * keys.number("rope.scaling.attn_factor", 1.0),
        freq_divisors=divisors,
    )
