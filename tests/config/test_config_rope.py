"""RopeConfig: three spellings, one result, and refusals."""

import math
from typing import Any

import pytest

from pyvt.config.model import ModelConfig
from pyvt.config.rope import RopeConfig, rope_from_hf
from pyvt.errors import ConfigError, UnsupportedError

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
SPELLINGS = [
    pytest.param({}, {}, id="plain"),
    pytest.param({"rope_type": "default"}, {"rope_type": "default"}, id="default"),
    pytest.param({"rope_type": "default"}, {"type": "mrope"}, id="mrope"),
    pytest.param(
        {"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2}, id="linear"
    ),
    pytest.param({"rope_type": "llama3"} | LLAMA3, {"rope_type": "llama3"} | LLAMA3, id="llama3"),
    pytest.param({"rope_type": "yarn"} | YARN, {"type": "yarn"} | YARN, id="yarn"),
]


@pytest.mark.parametrize(("new", "old"), SPELLINGS)
def test_old_and_new_spellings_are_one_config(new: dict[str, Any], old: dict[str, Any]) -> None:
    in_block = rope_from_hf({"rope_parameters": new | {"rope_theta": 5e5}}, 64, 131072)
    beside = rope_from_hf({"rope_scaling": old or None, "rope_theta": 5e5}, 64, 131072)

    assert in_block == beside
    assert in_block.theta == 5e5


@pytest.mark.parametrize("rope_type", ["llama3", "yarn"])
def test_original_context_falls_back_to_the_config_then_to_its_context(rope_type: str) -> None:
    block = {"rope_type": rope_type, "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 4}
    beside = {"rope_scaling": block, "original_max_position_embeddings": 1024}

    assert rope_from_hf(beside, 64, 4096).original_max_position_embeddings == 1024
    assert rope_from_hf({"rope_scaling": block}, 64, 4096).original_max_position_embeddings == 4096


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        pytest.param({}, 1.1386294361119891, id="from-factor"),
        pytest.param({"attention_factor": 0.7}, 0.7, id="given"),
        pytest.param({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0, id="ratio"),
        pytest.param({"mscale": 1.0, "mscale_all_dim": 0.0}, 1.1386294361119891, id="zero"),
        pytest.param({"factor": 1.0}, 1.0, id="no-extension"),
    ],
)
def test_yarn_attention_factor(keys: dict[str, float], factor: float) -> None:
    rope = rope_from_hf({"rope_scaling": {"rope_type": "yarn"} | YARN | keys}, 64, 131072)

    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


def test_yarn_without_a_factor_extends_to_the_context() -> None:
    block = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1000}

    assert rope_from_hf({"rope_parameters": block}, 64, 8000).factor == 8.0


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "proportional", "su", 3])
def test_unknown_type_is_refused_with_the_known_ones(rope_type: Any) -> None:
    with pytest.raises(UnsupportedError, match="default, linear, llama3, yarn"):
        rope_from_hf({"rope_scaling": {"type": rope_type, "factor": 2.0}}, 64, 4096)


@pytest.mark.parametrize(
    ("block", "word"),
    [
        pytest.param({"rope_type": "linear"}, "factor", id="no-factor"),
        pytest.param({"rope_type": "linear", "factor": 0}, "factor", id="zero-factor"),
        pytest.param({"rope_theta": float("inf")}, "rope_theta", id="theta"),
        pytest.param(
            {"rope_type": "llama3"} | LLAMA3 | {"high_freq_factor": 1.0},
            "high_freq_factor",
            id="borders",
        ),
        pytest.param(
            {"rope_type": "llama3", "factor": 8.0}, "low_freq_factor", id="missing-border"
        ),
        pytest.param(
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0},
            "original_max_position_embeddings",
            id="original",
        ),
        pytest.param({"rope_theta": 10**400}, "rope_theta", id="theta-beyond-a-double"),
        pytest.param({"rope_type": "yarn", "rope_theta": 1.0} | YARN, "rope_theta", id="theta-1"),
        pytest.param({"rope_type": "yarn", "beta_fast": 1e308} | YARN, "beta_fast", id="ramp"),
        pytest.param({"rope_type": "linear", "factor": 1e-320}, "factor", id="tiny-factor"),
        pytest.param(
            {"rope_type": "yarn", "mscale": 1e308, "mscale_all_dim": 1e-300} | YARN,
            "attention_factor",
            id="magnitude",
        ),
        pytest.param(
            {"rope_type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": -10 / math.log(4)},
            "mscale_all_dim",
            id="zero-magnitude",
        ),
    ],
)
def test_impossible_value_is_refused_by_key(block: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        rope_from_hf({"rope_parameters": block}, 64, 4096)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param({"rope_type": ["yarn"]}, id="list"),
        pytest.param({"type": {}, "rope_type": 3}, id="number"),
        pytest.param({"partial_rotary_factor": 0.5}, id="partial"),
        pytest.param(
            {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5}, id="partial-linear"
        ),
    ],
)
def test_what_pyvt_has_not_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"expected|not supported|one block"):
        rope_from_hf({"rope_scaling": block}, 64, 4096)


def test_one_block_for_each_kind_of_layer_is_refused() -> None:
    blocks = {"full_attention": {"rope_type": "default"}}

    with pytest.raises(UnsupportedError, match="full_attention"):
        rope_from_hf({"rope_parameters": blocks}, 64, 4096)


@pytest.mark.parametrize(
    "divisors", [(1.0,), (1.0, 0.0), (1.0, float("nan"))], ids=["short", "zero", "nan"]
)
def test_bad_divisors_are_refused(divisors: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="rope_freqs"):
        RopeConfig(rotary_dim=4, freq_divisors=divisors)


def test_gguf_yarn_factor_has_the_magnitude_of_the_extension() -> None:
    metadata = {
        "general.architecture": "qwen3",
        "qwen3.block_count": 1,
        "qwen3.embedding_length": 8,
        "qwen3.feed_forward_length": 8,
        "qwen3.attention.head_count": 1,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.context_length": 131072,
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 32768,
        "qwen3.rope.scaling.attn_factor": 0.5,
    }

    rope = ModelConfig.from_gguf(metadata, {"model.embed_tokens.weight": (9, 8)}).rope

    assert rope.attention_factor == pytest.approx(0.5 * 1.1386294361119891, rel=1e-12)
