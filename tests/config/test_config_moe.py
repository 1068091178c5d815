"""The experts of a model from config.json and from GGUF metadata."""

from typing import Any

import pytest

from pyvt.config.model import ModelConfig
from pyvt.config.moe import MoEConfig
from pyvt.errors import ConfigError
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import gguf_metadata

QWEN3_MOE = MODEL_CASES_BY_NAME["qwen3_moe"].config
STACKS = {"model.embed_tokens.weight": (97, 32)} | {
    f"model.layers.{i}.mlp.experts.gate_proj.weight": (6, 24, 32)
    for i in range(QWEN3_MOE["num_hidden_layers"])
}


def _moe(config: dict[str, Any], **changes: Any) -> MoEConfig | None:
    given = {key: value for key, value in (config | changes).items() if value != "absent"}
    return ModelConfig.from_hf(given).moe


def test_from_hf_reads_the_experts() -> None:
    assert _moe(QWEN3_MOE) == MoEConfig(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
    )


def test_from_hf_weights_are_as_they_are_unless_the_file_says_otherwise() -> None:
    moe = _moe(QWEN3_MOE, norm_topk_prob="absent")

    assert moe is not None
    assert not moe.norm_topk_prob


def test_from_hf_reads_the_other_spelling_of_the_number() -> None:
    moe = _moe(QWEN3_MOE, num_experts="absent", num_local_experts=7)

    assert moe is not None
    assert moe.num_experts == 7


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": [1]}, (1,)),
        ({"decoder_sparse_step": 2}, (0, 2)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [9]}, (0, 1)),
    ],
)
def test_from_hf_dense_layers(changes: dict[str, Any], dense: tuple[int, ...]) -> None:
    moe = _moe(QWEN3_MOE, num_hidden_layers=3, **changes)

    assert moe is not None
    assert moe.dense_layers == dense
    assert [moe.is_sparse(i) for i in range(4)] == [i not in dense for i in range(4)]


@pytest.mark.parametrize("changes", [{"num_experts": 0}, {"decoder_sparse_step": 3}])
def test_from_hf_without_sparse_layers_there_are_no_experts(changes: dict[str, Any]) -> None:
    assert _moe(QWEN3_MOE, **changes) is None


def test_from_hf_width_of_plain_mlps_is_asked_for_only_where_there_are_any() -> None:
    config = {k: v for k, v in QWEN3_MOE.items() if k != "intermediate_size"}

    assert ModelConfig.from_hf(config).intermediate_size == 24
    with pytest.raises(ConfigError, match="intermediate_size"):
        ModelConfig.from_hf(config | {"mlp_only_layers": [0]})


def test_from_hf_window_is_for_every_layer() -> None:
    config = QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

    assert ModelConfig.from_hf(config).sliding_windows == (5, 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 7}, ["num_experts_per_tok", "6", "7"]),
        ({"num_experts_per_tok": 0}, ["num_experts_per_tok", "0"]),
        ({"num_experts": "absent"}, ["num_experts"]),
        ({"num_experts": -1}, ["num_experts", "-1"]),
        ({"moe_intermediate_size": "absent"}, ["moe_intermediate_size"]),
        ({"decoder_sparse_step": 0}, ["decoder_sparse_step", "0"]),
        ({"mlp_only_layers": 1}, ["mlp_only_layers", "a list"]),
        ({"norm_topk_prob": "yes"}, ["norm_topk_prob", "'yes'"]),
    ],
)
def test_from_hf_refuses_experts_by_key_and_value(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        _moe(QWEN3_MOE, **changes)

    assert all(word in str(caught.value) for word in words), str(caught.value)


def _gguf(**changes: Any) -> dict[str, Any]:
    metadata = gguf_metadata(ModelConfig.from_hf(QWEN3_MOE))
    return metadata | {f"qwen3moe.{key}": value for key, value in changes.items()}


def test_from_gguf_equals_from_hf() -> None:
    config = ModelConfig.from_gguf(_gguf(), STACKS | {"lm_head.weight": (97, 32)})

    assert config.family == "qwen3_moe"
    assert config.moe == ModelConfig.from_hf(QWEN3_MOE).moe
    assert config.intermediate_size == QWEN3_MOE["intermediate_size"]


def test_from_gguf_layers_without_stacks_are_dense() -> None:
    sparse = {name: shape for name, shape in STACKS.items() if ".layers.0." not in name}

    config = ModelConfig.from_gguf(_gguf(), sparse)

    assert config.moe is not None
    assert config.moe.dense_layers == (0,)


def test_from_gguf_width_of_an_expert_may_be_told_by_its_tensor() -> None:
    metadata = {k: v for k, v in _gguf().items() if "expert_feed_forward" not in k}

    config = ModelConfig.from_gguf(metadata, STACKS)

    assert config.moe is not None
    assert config.moe.moe_intermediate_size == 24


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_used_count": 7}, ["num_experts_per_tok", "6", "7"]),
        ({"expert_count": 0}, ["expert_count", "0"]),
        ({"expert_count": [6]}, ["expert_count", "[6]"]),
    ],
)
def test_from_gguf_refuses_experts_by_key_and_value(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_gguf(_gguf(**changes), STACKS)

    assert all(word in str(caught.value) for word in words), str(caught.value)
