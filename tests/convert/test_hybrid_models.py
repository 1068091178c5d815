"""Hybrids from safetensors to GGUF: what is moved, what is kept, and that it is the same model."""

from pathlib import Path

import numpy as np
import pytest

from pyvt.config.model import FAMILIES, ModelConfig
from pyvt.convert import quantize_model
from pyvt.models.registry import check_model, model_config
from pyvt.tensor.dtype import F64
from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.hybrid_shapes import gguf_tensor, split_projections
from pyvt.testing.model_cases import fused_experts, stacked_experts
from pyvt.testing.model_runs import all_logits, gguf_metadata, load_case
from pyvt.testing.tolerance import compare
from pyvt.weights.gguf import open_gguf
from pyvt.weights.resolve import open_model
from tests.convert.test_quantize_model import values
from tests.convert.tiny_source import bpe_json, tiny_case, write_source

HYBRIDS = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_next_moe")
DRAFTING = ("qwen3_5_mtp", "qwen3_5_moe_mtp")
# What steers the state or the choice of experts: a few bits there cost more than they save.
KEPT = (
    "norm.weight",
    "norm_embedding.weight",
    "norm_hidden.weight",
    "A",
    "dt_bias",
    "conv1d.weight",
    "mlp.gate.weight",
    "shared_expert_gate",
)


def source_of(folder: Path, family: str) -> Path:
    return write_source(folder, family, bpe_json("qwen35"))


@pytest.mark.parametrize("family", [*HYBRIDS, *DRAFTING])
def test_a_hybrid_in_floats_is_the_model(tmp_path: Path, family: str) -> None:
    """Faults C3: what the upstream converter does to a hybrid, tensor by tensor."""
    source, case = source_of(tmp_path / "model", family), tiny_case(family)
    config = ModelConfig.from_hf(case.config)

    quantize_model(source, tmp_path / "out.gguf", "f32")

    files = open_model(tmp_path / "out.gguf")
    read = model_config(files)
    check_model(files, read)
    assert (read.linear_layers, read.num_mtp_layers) == (
        config.linear_layers,
        config.num_mtp_layers,
    )
    weights = split_projections(config, stacked_experts(case.weights()))
    expected = dict(gguf_tensor(config, name, array) for name, array in weights.items())
    for name, array in expected.items():
        stored = f"{name}.weight" if name.endswith("_proj") else name  # stacks of experts
        found = values(files.source, stored).reshape(array.shape)
        np.testing.assert_array_equal(found, array, err_msg=name)
    prompts = list(case.prompts().values())[:1]
    (got,), (wanted,) = (
        all_logits(load_case(path, dtype=F64).model, prompts)
        for path in (tmp_path / "out.gguf", source)
    )
    difference = compare(got, wanted, "model", "f32")
    assert difference.is_within, difference


@pytest.mark.parametrize("family", [*HYBRIDS, *DRAFTING])
def test_the_keys_of_a_hybrid_are_those_of_its_converter(tmp_path: Path, family: str) -> None:
    source = source_of(tmp_path / "model", family)
    config = ModelConfig.from_hf(tiny_case(family).config)

    quantize_model(source, tmp_path / "out.gguf", "bf16")

    metadata = open_gguf(tmp_path / "out.gguf").files[0].metadata
    expected = gguf_metadata(config)
    if config.family == "qwen3_next":
        del expected["qwen3next.rope.dimension_sections"]  # positions of one kind
    for key, value in expected.items():
        assert np.asarray(metadata[key]).tolist() == pytest.approx(value), key


@pytest.mark.parametrize(
    ("family", "file_type"),
    [("qwen3_5_moe_mtp", "q4_k_m"), ("qwen3_5_moe_mtp", "q8_0"), ("qwen3_next_moe", "q4_0")],
)
def test_what_steers_a_hybrid_is_kept_in_f32(tmp_path: Path, family: str, file_type: str) -> None:
    """Faults C6: neither the state's decay nor its convolution, norms or router is packed."""
    source = source_of(tmp_path / "model", family)

    quantize_model(source, tmp_path / "out.gguf", file_type)

    file = open_gguf(tmp_path / "out.gguf")
    dtypes = {name: file.info(name).dtype for name in file.names()}
    kept = {name for name in dtypes if name.endswith(KEPT) or "shared_expert_gate" in name}
    assert len(kept) > 20
    assert {dtypes[name].name for name in kept} == {"f32"}
    assert all(dtypes[name].is_block for name in dtypes.keys() - kept)


def test_q8_0_of_a_hybrid_says_what_the_model_says(tmp_path: Path) -> None:
    """Faults C6: divergence of the next token below 1e-3 nat."""
    source, case = source_of(tmp_path / "model", "qwen3_5"), tiny_case("qwen3_5")
    weights = case.weights()
    weights["lm_head.weight"] /= 20  # logits as far apart as those of a trained model
    write_safetensors(source, weights, case.config)
    quantize_model(source, tmp_path / "out.gguf", "q8_0")

    prompts = list(case.prompts().values())[:1]
    (ours,), (wanted,) = (
        all_logits(load_case(path).model, prompts) for path in (tmp_path / "out.gguf", source)
    )

    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (wanted, ours))
    assert (np.exp(log_p) * (log_p - log_q)).sum(-1).mean() < 1e-3


def test_experts_and_wrappers_come_out_alike(tmp_path: Path) -> None:
    """A vision tower is left out, prefixes of its wrapper too."""
    case = tiny_case("qwen3_5_moe")
    quantize_model(source_of(tmp_path / "plain", "qwen3_5_moe"), tmp_path / "plain.gguf", "q8_0")
    plain = open_gguf(tmp_path / "plain.gguf")
    for store in (stacked_experts, fused_experts):
        weights = {
            n.replace("model.", "model.language_model.", 1): a
            for n, a in store(case.weights()).items()
        } | {"model.visual.patch_embed.proj.weight": np.zeros((4, 4), np.float32)}
        folder = source_of(tmp_path / store.__name__, "qwen3_5_moe")
        write_safetensors(
            folder, weights, {"model_type": "qwen3_5_moe", "text_config": case.config}
        )

        quantize_model(folder, tmp_path / f"{store.__name__}.gguf", "q8_0")

        wrapped = open_gguf(tmp_path / f"{store.__name__}.gguf")
        assert set(plain.names()) == set(wrapped.names())
        for name in plain.names():
            np.testing.assert_array_equal(values(plain, name), values(wrapped, name), name)


def test_every_hybrid_has_a_row() -> None:
    assert {f.name for f in FAMILIES.values() if f.is_hybrid} == {
        name.removesuffix("_moe") if name == "qwen3_next_moe" else name for name in HYBRIDS
    }


def test_a_gguf_hybrid_of_floats_gives_the_file_of_its_safetensors(tmp_path: Path) -> None:
    source = source_of(tmp_path / "model", "qwen3_5_moe_mtp")
    quantize_model(source, tmp_path / "f32.gguf", "f32")

    quantize_model(source, tmp_path / "direct.gguf", "q4_k_m")
    quantize_model(tmp_path / "f32.gguf", tmp_path / "over.gguf", "q4_k_m")

    direct, over = (open_gguf(tmp_path / f"{name}.gguf") for name in ("direct", "over"))
    assert set(direct.names()) == set(over.names())
    for name in direct.names():
        assert direct.info(name).dtype is over.info(name).dtype, name
        np.testing.assert_array_equal(values(direct, name), values(over, name), err_msg=name)
