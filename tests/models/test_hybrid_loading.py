"""Loading hybrids: wrappers with a vision tower, draft heads, fused tensors, orders of heads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config.model import ModelConfig
from pyvt.errors import CheckpointError
from pyvt.models.registry import load_model, model_config
from pyvt.tensor.dtype import Q8_0
from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.testing.hybrid_shapes import gguf_tensor
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_logits, gguf_metadata, load_case, write_case
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare
from pyvt.weights.gguf_names import gguf_name
from pyvt.weights.resolve import open_model

DENSE = MODEL_CASES_BY_NAME["qwen3_5"]
DRAFTING = MODEL_CASES_BY_NAME["qwen3_5_mtp"]
PROMPT = DENSE.prompts()["short"]
Tensors = dict[str, Any]


def _logits(path: Path) -> Any:
    return all_logits(load_case(path).model, [PROMPT])[0]


def _in_wrapper(case: ModelCase, folder: Path) -> Path:
    """Write a case as the releases are: below a wrapper, with a vision tower beside it."""
    text = dict(case.config)
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"depth": 1},
        "tie_word_embeddings": text.pop("tie_word_embeddings"),
    }
    tensors: Tensors = {"model.visual.patch_embed.proj.weight": np.zeros((3, 2), np.float32)}
    for name, array in case.weights().items():
        tensors[name.replace("model.", "model.language_model.", 1)] = array
    return write_safetensors(folder, tensors, config)


def _write_gguf(case: ModelCase, path: Path, change: Callable[[Tensors], None]) -> Path:
    config = ModelConfig.from_hf(case.config)
    tensors: Tensors = {}
    for name, array in case.weights().items():
        canonical, values = gguf_tensor(config, name, array)
        stored = gguf_name("qwen35", canonical, config.num_layers)
        assert stored is not None, f"{name}: has a name in GGUF"
        tensors[stored] = values
    change(tensors)
    return write_gguf(path, gguf_metadata(config), tensors)


def test_wrapper_loads_as_the_text_model_and_leaves_the_vision_tower(tmp_path: Path) -> None:
    wrapped = _in_wrapper(DENSE, tmp_path / "wrapped")

    np.testing.assert_array_equal(_logits(wrapped), _logits(write_case(DENSE, tmp_path / "text")))


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_draft_head_is_found_by_its_tensors_and_left_out_on_request(
    kind: str, tmp_path: Path
) -> None:
    files = open_model(write_case(DRAFTING, tmp_path, kind=kind))
    config = model_config(files)

    without = load_model(files, replace(config, num_mtp_layers=0), max_positions=64)

    assert config.num_mtp_layers == 1
    assert without.model.mtp is None
    assert {name.split(".")[0] for name in without.report.ignored} == {"mtp"}
    assert load_model(files, config, max_positions=64).model.mtp is not None


def test_config_of_a_head_that_was_taken_out_counts_none(tmp_path: Path) -> None:
    tensors = {k: v for k, v in DRAFTING.weights().items() if not k.startswith("mtp.")}

    files = open_model(write_safetensors(tmp_path, tensors, DRAFTING.config))

    assert model_config(files).num_mtp_layers == 0


def test_a_head_without_one_of_its_tensors_is_refused(tmp_path: Path) -> None:
    tensors = DRAFTING.weights()
    del tensors["mtp.fc.weight"]

    with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight"):
        load_case(write_safetensors(tmp_path, tensors, DRAFTING.config))


def test_gguf_fused_qkv_of_a_gated_layer_is_told_from_a_projection_of_the_same_name(
    tmp_path: Path,
) -> None:
    def fuse(tensors: Tensors) -> None:
        parts = [tensors.pop(f"blk.3.attn_{name}.weight") for name in "qkv"]
        tensors["blk.3.attn_qkv.weight"] = np.concatenate(parts)

    path = _write_gguf(DENSE, tmp_path / "m.gguf", fuse)

    np.testing.assert_array_equal(
        _logits(path), _logits(write_case(DENSE, tmp_path / "split", kind="gguf"))
    )


def test_gguf_projections_of_different_types_are_kept_apart_as_stored(tmp_path: Path) -> None:
    """Nothing is put in another order or decoded at load: blocks stay the file's."""
    rng = np.random.default_rng(0)

    def pack(tensors: Tensors) -> None:
        for name in ("blk.0.attn_qkv.weight", "blk.0.ssm_out.weight"):
            tensors[name] = random_weight(rng, Q8_0, *tensors[name].shape)

    path = _write_gguf(DENSE, tmp_path / "m.gguf", pack)
    stored = load_case(path, expand="never")
    weight = stored.model.model.layers[0].linear_attn.in_proj.weight

    assert [part.dtype.name for part in weight.parts] == ["q8_0", "float32", "float32", "float32"]
    difference = compare(all_logits(stored.model, [PROMPT])[0], _logits(path), "model_self", "f32")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("attn_gate.weight", lambda a: a[::-1], id="gate-rows"),
        pytest.param("ssm_out.weight", lambda a: a[:, ::-1], id="out-columns"),
        pytest.param("ssm_a", lambda a: np.log(-a), id="log-decay"),
        pytest.param("attn_norm.weight", lambda a: a - 1, id="norm-without-1"),
        pytest.param("ssm_norm.weight", lambda a: a + 1, id="plain-norm-with-1"),
        pytest.param("ssm_conv1d.weight", lambda a: a[:, ::-1], id="taps"),
    ],
)
def test_each_change_of_a_converter_is_seen(
    name: str, change: Callable[[Any], Any], tmp_path: Path
) -> None:
    """The comparison of both file formats would fail without any one of them."""
    want = _logits(write_case(DENSE, tmp_path / "hf"))

    def spoil(tensors: Tensors) -> None:
        tensors[f"blk.0.{name}"] = np.ascontiguousarray(change(tensors[f"blk.0.{name}"]))

    got = _logits(_write_gguf(DENSE, tmp_path / "m.gguf", spoil))

    assert not compare(got, want, "model_self", "f32").is_within


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("ssm_alpha", "in_proj_a"),
        ("ssm_beta", "in_proj_b"),
        ("attn_gate", "in_proj_z"),
        ("attn_qkv", "in_proj_qkv"),
    ],
)
def test_gguf_without_a_projection_in_any_layer_is_refused(
    name: str, missing: str, tmp_path: Path
) -> None:
    def drop(tensors: Tensors) -> None:
        for i in ModelConfig.from_hf(DENSE.config).linear_layers:
            del tensors[f"blk.{i}.{name}.weight"]

    path = _write_gguf(DENSE, tmp_path / "m.gguf", drop)

    with pytest.raises(CheckpointError, match=rf"linear_attn\.{missing}\.weight"):
        load_case(path)
