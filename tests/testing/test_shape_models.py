"""Models of a shape: sound files, the same values in every plain dtype, and their cost."""

from pathlib import Path

import numpy as np
import pytest

from pyvt.errors import ConfigError
from pyvt.llm import LLM
from pyvt.models.registry import load_model
from pyvt.sampling_params import SamplingParams
from pyvt.testing.bench_limits import Limits
from pyvt.testing.model_cost import ModelCost
from pyvt.testing.model_runs import all_logits
from pyvt.testing.shape_models import SHAPES, ShapeModel, random_tensor
from pyvt.weights.resolve import open_model

TINY = SHAPES["tiny"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYVT_HOME of the test's own."""
    monkeypatch.setenv("PYVT_HOME", str(tmp_path))


@pytest.mark.parametrize("shape", ["tiny", "tiny-moe", "tiny-hybrid", "tiny-hybrid-dense"])
@pytest.mark.parametrize("mix", ["q4_k_m", "bf16"])
def test_file_of_a_shape_runs(shape: str, mix: str) -> None:
    path = ShapeModel.named(f"shape:{shape}:{mix}").gguf()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    output = LLM(str(path), max_model_len=64).generate([[1, 2, 3]], params)

    assert len(output[0].outputs[0].token_ids) == 4
    assert output[0].error is None


def test_mix_q4_k_m_has_more_bits_at_the_ends() -> None:
    model = ShapeModel.named("shape:qwen3-0.6b:q4_k_m")

    formats = {name: dtype.name for name, _, dtype in model.tensors()}

    down = [formats[f"model.layers.{i}.mlp.down_proj.weight"] for i in range(28)]
    assert down[:4] == ["q6_k"] * 3 + ["q4_k"]
    assert down[-4:] == ["q6_k"] * 4
    assert formats["model.embed_tokens.weight"] == "q6_k"
    assert formats["model.layers.0.mlp.up_proj.weight"] == "q4_k"
    assert formats["model.norm.weight"] == "f32"


def test_experts_are_stacks_in_gguf_and_single_in_safetensors_with_the_same_values() -> None:
    model = ShapeModel.named("shape:tiny-moe:bf16")
    prefix = "model.layers.1.mlp.experts."

    stack = np.asarray(open_model(model.gguf()).source.get(f"{prefix}down_proj.weight"))
    single = open_model(model.safetensors()).source

    assert stack.shape == (8, 256, 256)
    for i in range(8):
        want = np.asarray(single.get(f"{prefix}{i}.down_proj.weight"))
        assert stack[i].tobytes() == want.tobytes()


def test_hybrids_in_gguf_and_safetensors_give_the_same_tokens() -> None:
    model = ShapeModel.named("shape:tiny-hybrid:f32")
    settings = {"backend": "numpy", "max_model_len": 64}
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

    gguf = LLM(str(model.gguf()), **settings).generate([[1, 2, 3]], params)
    loaded = load_model(open_model(model.safetensors()), max_positions=64)

    ids = np.array([1, 2, 3, *gguf[0].outputs[0].token_ids])
    (logits,) = all_logits(loaded.model, [(ids[:-1], np.arange(len(ids) - 1))])
    assert logits[2:].argmax(axis=1).tolist() == ids[3:].tolist()


def test_gguf_and_safetensors_of_a_plain_dtype_are_one_model() -> None:
    model = ShapeModel.named("shape:tiny:bf16")
    name = "model.layers.1.mlp.up_proj.weight"

    arrays = [
        np.asarray(open_model(path).source.get(name)).view(np.uint16)
        for path in (model.gguf(), model.safetensors())
    ]

    np.testing.assert_array_equal(*arrays)


def test_plain_values_are_the_same_in_f32_and_bf16() -> None:
    dtypes = {name: dtype for name, _, dtype in ShapeModel.named("shape:tiny:f32").tensors()}
    wide = random_tensor("x.weight", (4, 32), dtypes["model.embed_tokens.weight"])
    names = {d.name: d for _, _, d in ShapeModel.named("shape:tiny:bf16").tensors()}

    half = random_tensor("x.weight", (4, 32), names["bf16"])

    assert isinstance(wide, np.ndarray)
    assert isinstance(half, np.ndarray)
    np.testing.assert_array_equal(wide, half.astype(np.float32))


def test_safetensors_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a plain dtype, got 'q8_0'"):
        ShapeModel.named("shape:tiny:q8_0").safetensors()


@pytest.mark.parametrize("name", ["shape:tinny:q8_0", "shape:tiny:q9", "shape:tiny"])
def test_unknown_shape_or_mix_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        ShapeModel.named(name)


def test_cost_counts_the_tied_head_and_shares_are_of_the_limits() -> None:
    cost = ModelCost.of(ShapeModel.named("shape:tiny:f32").gguf())
    limits = Limits(read=1.0, loops={"fma_f32": 2.0})
    hidden, inner, vocab = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
    layer = hidden * (256 + 128 + 128) + 256 * hidden + 3 * hidden * inner

    assert cost.layer_ops == {"f32": 2 * 2 * layer}
    assert cost.head_ops == {"f32": 2 * vocab * hidden}
    assert cost.step_bytes == 4 * (2 * layer + vocab * hidden)
    assert cost.read_share(cost.step_bytes / 1e9, limits) == pytest.approx(1.0)
    seconds = (3 * cost.layer_ops["f32"] + cost.head_ops["f32"]) / 2e9
    share = cost.loop_share(seconds, limits, num_tokens=3, num_logits=1)
    assert share == pytest.approx(1.0)


def test_cost_of_experts_is_that_of_those_that_a_token_gets() -> None:
    config = SHAPES["tiny-moe"]
    hidden, inner, vocab = config["hidden_size"], config["moe_intermediate_size"], 512
    layer = hidden * (256 + 128 + 128) + 256 * hidden + 8 * hidden + 2 * 3 * hidden * inner
    paths = ShapeModel.named("shape:tiny-moe:f32")

    for path in (paths.gguf(), paths.safetensors()):
        cost = ModelCost.of(path)
        assert cost.layer_ops == {"f32": 2 * 2 * layer}
        assert cost.step_bytes == 4 * (2 * layer + vocab * hidden)


def test_rows_that_are_no_multiple_of_a_block_fall_back_as_llama_cpp_does() -> None:
    model = ShapeModel.named("shape:smollm2-135m:q4_k_m")

    formats = {name: dtype.name for name, _, dtype in model.tensors()}

    assert formats["model.embed_tokens.weight"] == "q8_0"
    assert formats["model.layers.9.self_attn.q_proj.weight"] == "q5_0"
    assert formats["model.layers.5.mlp.down_proj.weight"] == "q6_k"
