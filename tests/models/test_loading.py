"""Loading a model: every tensor is accounted for, whatever the file format."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config.model import ModelConfig
from pyvt.errors import CheckpointError, ConfigError, UnsupportedError
from pyvt.models.registry import MODELS, load_model, model_class
from pyvt.tensor.dtype import F32, F64, Q4_1, Q8_0
from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_logits, gguf_metadata, load_case, write_case
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare
from pyvt.weights.gguf_names import gguf_name
from pyvt.weights.loader import decide_expand
from pyvt.weights.resolve import open_model

LLAMA = MODEL_CASES_BY_NAME["llama"]
TIED = MODEL_CASES_BY_NAME["qwen3_tied"]
Tensors = dict[str, Any]
Change = Callable[[Tensors], object]


def _written(case: ModelCase, folder: Path, change: Change, **files: Any) -> Path:
    tensors = case.weights()
    change(tensors)
    return write_safetensors(folder, tensors, case.config, **files)


def _swap(tensors: Tensors, name: str, value: Any) -> None:
    tensors[name] = value


Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
BAD = [
    pytest.param(lambda t: t.pop(Q_PROJ), Q_PROJ, "got none named", id="missing"),
    pytest.param(
        lambda t: _swap(t, "model.layers.2.mlp.up_proj.weight", np.zeros((48, 32), np.float32)),
        "model.layers.2.mlp.up_proj.weight",
        "unknown",
        id="layer-past-the-end",
    ),
    pytest.param(
        lambda t: _swap(t, "model.layers.0.self_attn.q_proj.bias", np.zeros(32, np.float32)),
        "model.layers.0.self_attn.q_proj.bias",
        "unknown",
        id="bias-that-the-config-denies",
    ),
    pytest.param(
        lambda t: _swap(t, Q_PROJ, t[Q_PROJ][:-8]), Q_PROJ, r"\(32, 32\).*\(24, 32\)", id="shape"
    ),
    pytest.param(lambda t: _swap(t, NORM, t[NORM][None]), NORM, r"\(32,\).*\(1, 32\)", id="rank"),
    pytest.param(
        lambda t: _swap(t, NORM, t[NORM].astype(np.int32)), NORM, "f64|f32.*i32", id="dtype"
    ),
]


@pytest.mark.parametrize(("change", "tensor", "text"), BAD)
def test_tensor_that_does_not_fit_is_refused_by_name(
    change: Change, tensor: str, text: str, tmp_path: Path
) -> None:
    path = _written(LLAMA, tmp_path, change)

    with pytest.raises(CheckpointError, match=text) as caught:
        load_case(path)

    assert caught.value.tensor == tensor
    assert tensor in str(caught.value)
    assert "model.safetensors" in str(caught.value.path)


EXPERT = "model.layers.1.mlp.experts.{}up_proj.weight"
BAD_EXPERTS = [
    pytest.param(
        lambda t: t.pop(EXPERT.format("4.")), EXPERT.format("4."), "got none named", id="missing"
    ),
    pytest.param(
        lambda t: [t.pop(EXPERT.format(f"{i}.")) for i in range(6)],
        EXPERT.format(""),
        "got none named",
        id="all-missing",
    ),
    pytest.param(
        lambda t: _swap(t, EXPERT.format("6."), t[EXPERT.format("5.")]),
        EXPERT.format("6."),
        "unknown",
        id="past-the-last",
    ),
    pytest.param(
        lambda t: _swap(t, EXPERT.format("2."), t[EXPERT.format("2.")].astype(np.float16)),
        EXPERT.format("2."),
        "dtype f32 as .*, got f16",
        id="dtypes",
    ),
    pytest.param(
        lambda t: _swap(t, EXPERT.format("2."), t[EXPERT.format("2.")][:-1]),
        EXPERT.format("2."),
        r"\(24, 32\).*\(23, 32\)",
        id="shape",
    ),
    pytest.param(
        lambda t: _swap(t, EXPERT.format(""), np.zeros((6, 24, 32), np.float32)),
        EXPERT.format(""),
        "as a stack or one by one",
        id="twice",
    ),
]


@pytest.mark.parametrize(("change", "tensor", "text"), BAD_EXPERTS)
def test_experts_that_do_not_fit_are_refused_by_name(
    change: Change, tensor: str, text: str, tmp_path: Path
) -> None:
    path = _written(MODEL_CASES_BY_NAME["qwen3_moe"], tmp_path, change)

    with pytest.raises(CheckpointError, match=text) as caught:
        load_case(path)

    assert caught.value.tensor == tensor


def test_missing_shard_is_refused_by_file(tmp_path: Path) -> None:
    path = write_case(LLAMA, tmp_path, parts=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        load_case(path)


def test_truncated_shard_is_refused_by_file(tmp_path: Path) -> None:
    path = write_case(LLAMA, tmp_path, parts=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])

    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        load_case(path)


def test_tied_model_ignores_a_stored_head_of_the_same_values(tmp_path: Path) -> None:
    path = _written(TIED, tmp_path, lambda t: _swap(t, "lm_head.weight", t[EMBEDDING]))

    loaded = load_case(path)

    assert loaded.report.ignored == ("lm_head.weight",)
    assert loaded.model.lm_head is None


def test_stored_head_of_other_values_rules_over_a_tied_config(tmp_path: Path) -> None:
    """As in transformers, which then does not tie."""
    prompt = TIED.prompts()["short"]
    head = np.random.default_rng(3).standard_normal((97, 32)).astype(np.float32)
    untied = replace(TIED, config=TIED.config | {"tie_word_embeddings": False})
    change = partial(_swap, name="lm_head.weight", value=head)

    loaded = load_case(_written(TIED, tmp_path / "tied", change))

    expected = load_case(_written(untied, tmp_path / "untied", change))
    np.testing.assert_array_equal(
        all_logits(loaded.model, [prompt])[0], all_logits(expected.model, [prompt])[0]
    )


@pytest.mark.parametrize(
    "freqs",
    [
        pytest.param(random_weight(np.random.default_rng(0), Q8_0, 1, 32), id="packed"),
        pytest.param(np.ones(1 << 17, np.float32), id="many"),
    ],
)
def test_rope_freqs_are_checked_before_they_are_read(freqs: Any, tmp_path: Path) -> None:
    config = ModelConfig.from_hf(LLAMA.config)
    path = tmp_path / "model.gguf"
    write_gguf(path, gguf_metadata(config), {"rope_freqs.weight": freqs})

    with pytest.raises(CheckpointError, match="at most 65536 numbers") as caught:
        load_case(path)

    assert caught.value.tensor == "rope_freqs.weight"


def test_untied_model_without_a_head_uses_the_embedding(tmp_path: Path) -> None:
    case = replace(TIED, config=TIED.config | {"tie_word_embeddings": False})
    path = _written(case, tmp_path, lambda t: t.pop("lm_head.weight"))

    loaded = load_case(path)

    assert loaded.config.tie_word_embeddings
    assert loaded.model.lm_head is None


def test_gguf_head_is_used_where_it_is_stored(tmp_path: Path) -> None:
    """The Qwen3 files of tied models may hold one; its values then rule."""
    case = replace(TIED, config=TIED.config | {"tie_word_embeddings": False})

    loaded = load_case(write_case(case, tmp_path, kind="gguf"))

    assert loaded.model.lm_head is not None


def test_progress_counts_all_bytes_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    files = open_model(write_case(LLAMA, tmp_path))

    report = load_model(files, progress=lambda done, total: seen.append((done, total))).report

    totals = {total for _, total in seen}
    assert totals == {report.file_bytes}
    assert seen[0] == (0, report.file_bytes)
    assert seen[-1] == (report.file_bytes, report.file_bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_report_counts_what_was_loaded(tmp_path: Path) -> None:
    weights = LLAMA.weights()

    report = load_case(write_case(LLAMA, tmp_path)).report

    assert report.num_tensors == len(weights)
    assert report.num_parameters == sum(w.size for w in weights.values())
    assert report.dtypes == {"f32": len(weights)}
    assert report.resident_bytes == report.file_bytes == 4 * report.num_parameters


MIXED = {
    "blk.0.attn_q.weight": Q8_0,
    "blk.0.attn_k.weight": Q8_0,
    "blk.0.attn_v.weight": Q4_1,
    "blk.0.ffn_gate.weight": Q4_1,
    "blk.0.ffn_up.weight": Q4_1,
    "blk.1.attn_q.weight": Q4_1,
    "token_embd.weight": Q8_0,
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file whose layers mix block formats and f32."""
    rng = np.random.default_rng(5)
    stored: Tensors = {gguf_name("qwen3", name): array for name, array in TIED.weights().items()}
    for name, dtype in MIXED.items():
        stored[name] = random_weight(rng, dtype, *stored[name].shape)
    metadata = gguf_metadata(ModelConfig.from_hf(TIED.config))
    return write_gguf(tmp_path_factory.mktemp("mixed") / "model.gguf", metadata, stored)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_blocks_give_the_same_expanded_or_packed(dtype: Any, mixed: Path) -> None:
    prompt = TIED.prompts()["long"]

    (expanded,) = all_logits(load_case(mixed, dtype=dtype, expand="always").model, [prompt])
    (packed,) = all_logits(load_case(mixed, dtype=dtype, expand="never").model, [prompt])

    assert np.isfinite(packed).all()
    difference = compare(packed, expanded, "model_self", dtype.name)
    assert difference.is_within, difference.reason


def test_blocks_stay_packed_unless_expanded(mixed: Path) -> None:
    expanded, packed = load_case(mixed, expand="always"), load_case(mixed, expand="never")

    assert packed.report.resident_bytes == packed.report.file_bytes
    assert expanded.report.resident_bytes == 4 * expanded.report.num_parameters
    assert packed.report.dtypes["q8_0"] == 3
    assert packed.report.dtypes["q4_1"] == 4


def test_quantized_activations_are_near_exact_ones(mixed: Path) -> None:
    prompt = TIED.prompts()["long"]
    exact, coarse = (
        all_logits(load_case(mixed, expand="never", act=act).model, [prompt])[0]
        for act in ("none", "q8")
    )

    difference = compare(coarse, exact, "q8_against_none", "f32")

    assert difference.is_within, difference.reason
    assert not np.array_equal(coarse, exact)


@pytest.mark.parametrize(
    ("mode", "backend", "is_expanded", "word"),
    [
        pytest.param("always", "numpy", True, "always", id="always"),
        pytest.param("never", "numpy", False, "never", id="never"),
        pytest.param("auto", "numpy", True, "MiB", id="auto-with-room"),
        pytest.param("auto", "cpu", False, "cpu", id="auto-native"),
    ],
)
def test_expand_decision(
    mode: str, backend: str, is_expanded: bool, word: str, mixed: Path
) -> None:
    decision = decide_expand(mode, open_model(mixed).source, F32, backend)

    assert decision.is_expanded is is_expanded
    assert word in decision.reason


def test_expand_auto_keeps_blocks_where_memory_is_short(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyvt.weights.loader.available_host_bytes", lambda: 1 << 16)

    assert not decide_expand("auto", open_model(mixed).source, F32).is_expanded


def test_expand_refuses_an_unknown_mode(mixed: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'always'"):
        decide_expand("alway", open_model(mixed).source, F32)


@pytest.mark.parametrize("architecture", MODELS)
def test_registry_rows_lead_to_classes(architecture: str) -> None:
    assert model_class(architecture).__name__ == architecture


def test_registry_refuses_an_unknown_architecture_and_lists_the_known() -> None:
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM, Qwen3ForCausalLM"):
        model_class("GemmaForCausalLM")
