"""ModelConfig of hybrids: what config.json and GGUF metadata say, in the released spellings."""

from typing import Any

import pytest

from pyvt.config.hybrid import FUSED_PROJECTIONS, SPLIT_PROJECTIONS
from pyvt.config.model import ModelConfig
from pyvt.errors import ConfigError, UnsupportedError
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import gguf_metadata

DENSE = MODEL_CASES_BY_NAME["qwen3_5"].config
NEXT = MODEL_CASES_BY_NAME["qwen3_next_moe"].config
# The keys of a released Qwen3.6-35B-A3B, as far as the text model reads them.
RELEASED = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "vision_config": {"hidden_size": 1152},
    "vision_start_token_id": 248053,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": True,
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "output_gate_type": "swish",
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "shared_expert_intermediate_size": 512,
        "vocab_size": 248320,
    },
}

TABLE = {"model.embed_tokens.weight": (97, 32)}


def _gguf(name: str, **changes: Any) -> dict[str, Any]:
    metadata = gguf_metadata(ModelConfig.from_hf(MODEL_CASES_BY_NAME[name].config))
    arch = metadata["general.architecture"]
    return metadata | {f"{arch}.{key.replace('__', '.')}": v for key, v in changes.items()}


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    return MODEL_CASES_BY_NAME[name].shapes()


def test_a_released_wrapper_is_read_whole() -> None:
    config = ModelConfig.from_hf(RELEASED)

    linear = config.linear_attention
    assert (config.family, config.num_mtp_layers) == ("qwen3_5_moe", 1)
    assert len(config.linear_layers) == 30
    assert set(range(40)) - set(config.linear_layers) == set(range(3, 40, 4))
    assert linear is not None
    assert (linear.num_channels, linear.value_size) == (8192, 4096)
    assert (linear.head_map, linear.projections) == ("grouped", SPLIT_PROJECTIONS)
    assert (config.rope.rotary_dim, config.rope.theta) == (64, 1e7)
    assert config.has_output_gate
    assert config.norm_offset == 1.0
    assert config.moe is not None
    assert (config.moe.norm_topk_prob, config.moe.shared_expert_intermediate_size) == (True, 512)
    assert config.eos_token_ids == (248044,)


def test_a_quarter_of_a_head_turns_where_the_file_does_not_say() -> None:
    config = DENSE | {"rope_parameters": None, "rope_theta": 5000.0}

    rope = ModelConfig.from_hf(config).rope

    assert (rope.rotary_dim, rope.theta) == (8, 5000.0)


def test_sizes_that_equal_the_defaults_may_be_absent() -> None:
    config = {k: v for k, v in DENSE.items() if not k.startswith("linear_")}

    linear = ModelConfig.from_hf(config).linear_attention

    assert linear is not None
    assert (linear.num_key_heads, linear.num_value_heads, linear.key_head_dim) == (16, 32, 128)


def test_qwen3_next_has_fused_projections_and_weights_that_add_up() -> None:
    config = ModelConfig.from_hf({k: v for k, v in NEXT.items() if k != "norm_topk_prob"})

    assert config.linear_attention is not None
    assert config.linear_attention.projections == FUSED_PROJECTIONS
    assert config.moe is not None
    assert config.moe.norm_topk_prob
    assert not ModelConfig.from_hf(NEXT | {"norm_topk_prob": False}).moe.norm_topk_prob  # type: ignore[union-attr]


def test_an_ungated_attention_is_read_where_the_file_says_so() -> None:
    assert not ModelConfig.from_hf(DENSE | {"attn_output_gate": False}).has_output_gate


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"linear_num_value_heads": 5}, ConfigError, ["linear_num_value_heads", "2", "5"]),
        ({"linear_conv_kernel_dim": 1}, ConfigError, ["linear_conv_kernel_dim", "1"]),
        ({"layer_types": ["linear_attention"] * 3}, ConfigError, ["layer_types", "4 entries"]),
        ({"layer_types": ["mamba"] * 4}, ConfigError, ["layer_types", "mamba"]),
        ({"layer_types": ["linear_attention"] * 4}, ConfigError, ["full_attention", "none"]),
        ({"output_gate_type": "tanh"}, UnsupportedError, ["output_gate_type", "tanh", "swish"]),
        ({"rope_parameters": {"partial_rotary_factor": 1.5}}, ConfigError, ["1.5"]),
        (
            {"rope_parameters": {"mrope_section": [11, 11, 10]}},
            ConfigError,
            ["mrope_section", "sum 4", "11"],
        ),
    ],
    ids=str,
)
def test_from_hf_refuses_a_value_by_key_and_value(
    changes: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as refused:
        ModelConfig.from_hf(DENSE | changes)

    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_layer_types", "qwen3_5_moe", "qwen3_next"])
def test_from_gguf_equals_from_hf_but_for_what_a_converter_changes(name: str) -> None:
    hf = ModelConfig.from_hf(MODEL_CASES_BY_NAME[name].config)

    gguf = ModelConfig.from_gguf(_gguf(name), TABLE)

    for field in ("linear_layers", "num_layers", "rope", "head_dim", "has_output_gate"):
        assert getattr(gguf, field) == getattr(hf, field)
    assert hf.linear_attention is not None
    assert gguf.linear_attention is not None
    assert gguf.linear_attention.num_channels == hf.linear_attention.num_channels
    assert gguf.linear_attention.head_map == ("grouped" if "next" in name else "tiled")
    assert not gguf.linear_attention.has_log_decay
    assert gguf.norm_offset == 0.0


def test_from_gguf_counts_draft_blocks_apart() -> None:
    config = ModelConfig.from_gguf(_gguf("qwen3_5_mtp"), TABLE)

    assert (config.num_layers, config.num_mtp_layers) == (2, 1)
    assert config.linear_layers == (0,)


def test_from_gguf_takes_sizes_of_0_in_layers_without_attention() -> None:
    config = ModelConfig.from_gguf(_gguf("qwen3_5", attention__head_count_kv=[0, 0, 0, 2]), TABLE)

    assert config.num_kv_heads == 2


def test_from_gguf_takes_the_interval_where_no_layers_are_marked() -> None:
    metadata = _gguf("qwen3_5", full_attention_interval=2)
    del metadata["qwen35.attention.recurrent_layers"]

    assert ModelConfig.from_gguf(metadata, TABLE).linear_layers == (0, 2)


def test_from_gguf_sees_by_names_which_projections_are_fused() -> None:
    fused = ModelConfig.from_gguf(_gguf("qwen3_next"), _shapes("qwen3_next"))

    assert fused.linear_attention is not None
    assert fused.linear_attention.projections == FUSED_PROJECTIONS


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("qwen3_5", {"nextn_predict_layers": 4}, ["nextn_predict_layers", "block_count=4"]),
        ("qwen3_5", {"ssm__inner_size": 193}, ["ssm.inner_size", "6 heads", "193"]),
        ("qwen3_5", {"attention__recurrent_layers": [True]}, ["recurrent_layers", "4 true"]),
        ("qwen3_5", {"rope__dimension_sections": [9, 9, 9, 0]}, ["dimension_sections", "9"]),
        ("qwen3", {"nextn_predict_layers": 1}, ["nextn_predict_layers", "0 for this family"]),
    ],
    ids=str,
)
def test_from_gguf_refuses_a_value_by_key_and_value(
    name: str, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises((ConfigError, UnsupportedError)) as refused:
        ModelConfig.from_gguf(_gguf(name, **changes), TABLE)

    assert all(word in str(refused.value) for word in words)
