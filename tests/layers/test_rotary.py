"""Frequencies of every RoPE type against transformers, near and far."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config.model import ModelConfig
from pyvt.config.rope import RopeConfig, rope_from_hf
from pyvt.layers.rotary import RotaryEmbedding, inverse_frequencies
from pyvt.tensor.dtype import F32, F64
from pyvt.testing.model_cases import (
    FAR_POSITIONS,
    MODEL_CASES_BY_NAME,
    ModelGolden,
    read_model_goldens,
)
from pyvt.testing.tolerance import compare

GOLDENS = [
    pytest.param(golden, id=golden.case)
    for golden in read_model_goldens(Path(__file__).parents[2] / "parity" / "goldens")
]


@pytest.mark.parametrize("golden", GOLDENS)
def test_inverse_frequencies_equal_transformers(golden: ModelGolden) -> None:
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME[golden.case].config)

    inv_freq = inverse_frequencies(config.rope)

    difference = compare(inv_freq, golden.arrays["inv_freq"], "rope", "f64")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize("golden", GOLDENS)
def test_cos_and_sin_at_far_positions_equal_transformers(golden: ModelGolden) -> None:
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME[golden.case].config)
    rotary = RotaryEmbedding(config.rope, FAR_POSITIONS[-1] + 1, F64)

    got = rotary.cos_sin[list(FAR_POSITIONS)]

    want = np.concatenate([golden.arrays["cos"], golden.arrays["sin"]], axis=1)
    difference = compare(got, want, "model_far", "f64")
    assert difference.is_within, difference.reason


def test_old_and_new_keys_give_identical_frequencies() -> None:
    block = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    new: dict[str, Any] = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | block}
    old: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | block}

    a, b = (inverse_frequencies(rope_from_hf(c, 128, 131072)) for c in (new, old))

    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, inverse_frequencies(RopeConfig(rotary_dim=128, theta=5e5)))


def test_stored_divisors_divide_the_frequencies() -> None:
    rope = RopeConfig(rotary_dim=4, theta=100.0, freq_divisors=(1.0, 4.0))

    np.testing.assert_allclose(inverse_frequencies(rope), [1.0, 0.025], rtol=1e-15)


def test_table_has_a_row_for_each_position_in_the_asked_dtype() -> None:
    rotary = RotaryEmbedding(RopeConfig(rotary_dim=8), 5, F32)

    assert rotary.cos_sin.shape == (5, 8)
    assert rotary.cos_sin.dtype == np.float32


def test_yarn_whose_ramp_has_no_length_is_a_step() -> None:
    """Where both borders fall on one pair, it is kept as it is and all after it are divided.

    Source: transformers ``modeling_rope_utils.linear_ramp_factor``.
    """
    rope = RopeConfig(
        rotary_dim=8,
        rope_type="yarn",
        theta=10.0,
        factor=4.0,
        original_max_position_embeddings=6,
        beta_fast=1.0,
        beta_slow=1.0,
    )
    plain = 10.0 ** (-np.arange(0, 8, 2) / 8)

    divided = plain / inverse_frequencies(rope)

    np.testing.assert_allclose(divided, [1, 4, 4, 4], rtol=1e-12)
