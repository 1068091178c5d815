"""ModelConfig from config.json and from GGUF metadata."""

from typing import Any

import pytest

from pyvt.config.model import ModelConfig, SamplingDefaults
from pyvt.errors import ConfigError, UnsupportedError
from pyvt.testing.model_cases import MODEL_CASES, MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import gguf_metadata

LLAMA = MODEL_CASES_BY_NAME["llama"].config
QWEN3 = MODEL_CASES_BY_NAME["qwen3"].config


def _without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


def _gguf(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    metadata = gguf_metadata(ModelConfig.from_hf(config))
    family = metadata["general.architecture"]
    return metadata | {f"{family}.{key.replace('__', '.')}": v for key, v in changes.items()}


def test_from_hf_reads_sizes_and_fixes_what_the_family_fixes() -> None:
    config = ModelConfig.from_hf(QWEN3)

    assert (config.family, config.architecture) == ("qwen3", "Qwen3ForCausalLM")
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 12)
    assert config.qk_norm
    assert not config.mlp_bias
    assert config.sliding_windows == (None, None)


@pytest.mark.parametrize(
    ("config", "head_dim"),
    [
        pytest.param(LLAMA, 8, id="llama-hidden-over-heads"),
        pytest.param(LLAMA | {"head_dim": 20}, 20, id="llama-given"),
        pytest.param(_without(QWEN3, "head_dim"), 128, id="qwen3-default"),
        pytest.param(QWEN3 | {"head_dim": None}, 128, id="qwen3-null"),
    ],
)
def test_from_hf_head_dim(config: dict[str, Any], head_dim: int) -> None:
    assert ModelConfig.from_hf(config).head_dim == head_dim


def test_from_hf_null_kv_heads_are_query_heads() -> None:
    assert ModelConfig.from_hf(QWEN3 | {"num_key_value_heads": None}).num_kv_heads == 4


def test_from_hf_reads_text_config_below_the_wrapper() -> None:
    text = _without(QWEN3, "architectures") | {"model_type": "qwen3_text", "eos_token_id": 7}
    wrapper = {"model_type": "other", "text_config": text, "tie_word_embeddings": True}

    config = ModelConfig.from_hf(wrapper | {"eos_token_id": [5, 7]})

    assert config.family == "qwen3"
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (5, 7)


@pytest.mark.parametrize("model_type", [None, "my_tune"])
def test_from_hf_without_a_known_model_type_falls_back_to_the_architecture(
    model_type: str | None,
) -> None:
    assert ModelConfig.from_hf(QWEN3 | {"model_type": model_type}).family == "qwen3"


def test_from_hf_eos_is_the_union_of_all_files() -> None:
    generation = {"eos_token_id": [151645, 151643]}

    config = ModelConfig.from_hf(QWEN3 | {"eos_token_id": 151643}, generation)

    assert config.eos_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        pytest.param(None, SamplingDefaults(), id="no-file"),
        pytest.param(
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0},
            SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.0),
            id="sampling",
        ),
        pytest.param(
            {"do_sample": False, "temperature": 0.6},
            SamplingDefaults(temperature=0.0),
            id="greedy",
        ),
    ],
)
def test_from_hf_sampling_defaults(
    generation: dict[str, Any] | None, defaults: SamplingDefaults
) -> None:
    assert ModelConfig.from_hf(QWEN3, generation).sampling_defaults == defaults


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        pytest.param({"sliding_window": 4096}, (None,) * 3, id="switched-off"),
        pytest.param({"use_sliding_window": True}, (None,) * 3, id="no-window"),
        pytest.param(
            {"use_sliding_window": True, "sliding_window": 5}, (None,) * 3, id="from-layer-28"
        ),
        pytest.param(
            {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
            (None, 5, 5),
            id="from-layer-1",
        ),
        pytest.param(
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (5, None, 5),
            id="layer-types",
        ),
    ],
)
def test_from_hf_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    config = ModelConfig.from_hf(QWEN3 | {"num_hidden_layers": 3} | changes)

    assert config.sliding_windows == windows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"vocab_size": None}, ["vocab_size", "None"], id="missing"),
        pytest.param({"hidden_size": "32"}, ["hidden_size", "'32'"], id="text"),
        pytest.param({"hidden_size": True}, ["hidden_size", "True"], id="bool"),
        pytest.param({"hidden_size": 2.5}, ["hidden_size", "2.5"], id="fraction"),
        pytest.param({"num_hidden_layers": 0}, ["num_hidden_layers", "got 0"], id="zero"),
        pytest.param({"num_hidden_layers": 2**62}, ["num_hidden_layers", "4096"], id="absurd"),
        pytest.param({"num_key_value_heads": 3}, ["num_key_value_heads", "4", "3"], id="groups"),
        pytest.param({"num_attention_heads": 5}, ["hidden_size=32", "5"], id="heads"),
        pytest.param({"head_dim": 7}, ["head_dim", "7"], id="odd-head"),
        pytest.param({"rms_norm_eps": 0}, ["rms_norm_eps", "0"], id="eps"),
        pytest.param({"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"], id="nan"),
        pytest.param({"eos_token_id": "2"}, ["eos_token_id", "'2'"], id="eos"),
        pytest.param({"eos_token_id": [-1]}, ["eos_token_id", "[-1]"], id="negative-eos"),
        pytest.param({"text_config": 3}, ["text_config", "3"], id="wrapper"),
        pytest.param({"rms_norm_eps": 10**400}, ["rms_norm_eps", "inf"], id="beyond-a-double"),
        pytest.param({"layer_types": 5}, ["layer_types", "a list", "5"], id="number-of-layers"),
        pytest.param(
            {"model_type": None, "architectures": 5}, ["architectures", "5"], id="architectures"
        ),
        pytest.param(
            {"layer_types": ["sliding_attention"] * 2}, ["layer_types", "sliding"], id="no-window"
        ),
    ],
)
def test_from_hf_refuses_a_value_by_key_and_value(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_hf(LLAMA | changes)

    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"layer_types": ["full_attention"]}, ["layer_types", "2"], id="length"),
        pytest.param(
            {"layer_types": ["full_attention", "linear_attention"]},
            ["layer_types", "linear_attention"],
            id="kind",
        ),
    ],
)
def test_from_hf_refuses_layer_types(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_hf(QWEN3 | changes)

    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"]},
            ["smollm3", "llama", "qwen3"],
            id="family",
        ),
        pytest.param(
            {"model_type": None, "architectures": ["GemmaForCausalLM"]},
            ["GemmaForCausalLM", "LlamaForCausalLM"],
            id="architecture",
        ),
        pytest.param({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"], id="activation"),
    ],
)
def test_from_hf_refuses_what_it_does_not_have(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        ModelConfig.from_hf(LLAMA | changes)

    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in MODEL_CASES[:6]])
def test_from_gguf_equals_from_hf(case: Any) -> None:
    config = ModelConfig.from_hf(case.config)

    read = ModelConfig.from_gguf(
        gguf_metadata(config)
        | {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.bos_token_id": 1},
        case.shapes(),
    )

    assert read == config


def test_from_gguf_absent_head_size_is_hidden_over_heads() -> None:
    metadata = _without(_gguf(LLAMA), "llama.attention.key_length", "llama.attention.value_length")

    config = ModelConfig.from_gguf(metadata, MODEL_CASES_BY_NAME["llama"].shapes())

    assert config.head_dim == 8


def test_from_gguf_takes_equal_sizes_written_once_a_layer() -> None:
    metadata = _gguf(LLAMA, attention__head_count=[4, 4], feed_forward_length=[48, 48])

    config = ModelConfig.from_gguf(metadata, MODEL_CASES_BY_NAME["llama"].shapes())

    assert (config.num_heads, config.intermediate_size) == (4, 48)


def test_from_gguf_eos_is_the_union_of_eos_eot_and_eom() -> None:
    ids = {f"tokenizer.ggml.{kind}_token_id": i for i, kind in enumerate(("eos", "eot", "eom"))}

    config = ModelConfig.from_gguf(_gguf(LLAMA) | ids, MODEL_CASES_BY_NAME["llama"].shapes())

    assert config.eos_token_ids == (0, 1, 2)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        pytest.param(
            {"attention__head_count": [4, 2]}, ConfigError, ["head_count", "[4, 2]"], id="per-layer"
        ),
        pytest.param(
            {"attention__value_length": 4}, ConfigError, ["value_length", "8", "4"], id="value"
        ),
        pytest.param({"vocab_size": 98}, ConfigError, ["vocab_size", "97", "98"], id="vocab"),
        pytest.param({"block_count": 2**62}, ConfigError, ["block_count"], id="absurd"),
        pytest.param({"rope__dimension_count": 4}, ConfigError, ["8", "4"], id="partial-rope"),
        pytest.param({"rope__freq_base": -1.0}, ConfigError, ["freq_base", "-1"], id="base"),
        pytest.param({"expert_count": 8}, UnsupportedError, ["expert_count", "8"], id="experts"),
        pytest.param(
            {"attention__sliding_window": 512}, UnsupportedError, ["sliding_window"], id="window"
        ),
        pytest.param(
            {"attention__sliding_window": "512"},
            ConfigError,
            ["sliding_window", "'512'"],
            id="text",
        ),
        pytest.param({"rope__freq_base": 10**400}, ConfigError, ["freq_base", "inf"], id="huge"),
        pytest.param(
            {"rope__scaling__type": [1]}, UnsupportedError, ["scaling.type", "[1]"], id="type-list"
        ),
        pytest.param(
            {"attention__head_count": [[4]]}, ConfigError, ["head_count", "[4]"], id="nested"
        ),
        pytest.param(
            {"rope__scaling__type": "longrope"},
            UnsupportedError,
            ["longrope", "yarn"],
            id="rope-type",
        ),
    ],
)
def test_from_gguf_refuses_a_value_by_key_and_value(
    changes: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        ModelConfig.from_gguf(_gguf(LLAMA, **changes), MODEL_CASES_BY_NAME["llama"].shapes())

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_from_gguf_refuses_an_unknown_architecture() -> None:
    with pytest.raises(UnsupportedError, match=r"'smollm3' is not supported.*llama, qwen3"):
        ModelConfig.from_gguf({"general.architecture": "smollm3"}, {})
