"""Counts and sizes of models: a value of the wrong kind is refused by its key."""

from typing import Any

import pytest

from pyvt.config.model import ModelConfig
from pyvt.errors import ConfigError
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import gguf_metadata

WRONG: list[Any] = [-1, True, 1.5, "2", [2, 3], 2**40]
# A sparse hybrid with what is read only where a file has no list of layers, or asks for windows.
CONFIGS = {
    "qwen3_5_moe": MODEL_CASES_BY_NAME["qwen3_5_moe"].config
    | {"layer_types": None, "mtp_num_hidden_layers": 1},
    "qwen3_moe": MODEL_CASES_BY_NAME["qwen3_moe"].config
    | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": MODEL_CASES_BY_NAME["qwen3"].config
    | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
}
COUNTS = {
    "qwen3_5_moe": (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "full_attention_interval",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "mtp_num_hidden_layers",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "decoder_sparse_step",
    ),
    "qwen3_moe": ("sliding_window", "num_experts"),
    "qwen3": ("intermediate_size", "max_window_layers"),
}
GGUF_COUNTS = {
    "qwen3_5_moe": (
        "block_count",
        "nextn_predict_layers",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "context_length",
        "vocab_size",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
        "full_attention_interval",
    ),
    "qwen3": ("feed_forward_length", "expert_count", "attention.sliding_window"),
}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in COUNTS.items() for key in keys]
)
def test_a_count_of_the_wrong_kind_is_refused_by_its_key(name: str, key: str) -> None:
    ModelConfig.from_hf(CONFIGS[name])

    for wrong in WRONG:
        with pytest.raises(ConfigError) as refused:
            ModelConfig.from_hf(CONFIGS[name] | {key: wrong})
        assert key in str(refused.value)
        assert repr(wrong) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in GGUF_COUNTS.items() for key in keys]
)
def test_a_count_of_gguf_metadata_is_refused_alike(name: str, key: str) -> None:
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME[name].config)
    metadata = gguf_metadata(config)
    arch = metadata["general.architecture"]
    metadata = {f"{arch}.vocab_size": config.vocab_size, **metadata}
    metadata.pop(f"{arch}.attention.recurrent_layers", None)

    for wrong in WRONG:
        with pytest.raises(ConfigError) as refused:
            ModelConfig.from_gguf(metadata | {f"{arch}.{key}": wrong}, {})
        assert key in str(refused.value)
        assert repr(wrong) in str(refused.value)


@pytest.mark.parametrize("wrong", ["0", -1, 1.5, True], ids=repr)
def test_a_dense_layer_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="mlp_only_layers"):
        ModelConfig.from_hf(CONFIGS["qwen3_moe"] | {"mlp_only_layers": [wrong]})
