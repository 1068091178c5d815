"""Whole tiny models against transformers, and against themselves cut differently."""

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.layers.forward_batch import Array, ForwardBatch
from pyvt.layers.moe import SparseMoE
from pyvt.models.decoder import DecoderForCausalLM
from pyvt.models.registry import LoadedModel
from pyvt.tensor.dtype import BF16, F16, F32, F64, DType
from pyvt.testing.model_cases import (
    MODEL_CASES,
    MODEL_CASES_BY_NAME,
    ModelCase,
    ModelGolden,
    read_model_goldens,
    weights_sha256,
)
from pyvt.testing.model_runs import all_logits, load_case, write_case
from pyvt.testing.tolerance import compare

ROOT = Path(__file__).parents[2] / "parity" / "goldens"
GOLDENS = list(read_model_goldens(ROOT))
BY_CASE = [pytest.param(golden, id=golden.case) for golden in GOLDENS]
GGUF_CASES = [
    pytest.param(case, id=case.name)
    for case in MODEL_CASES
    if not case.has_window
    and case.config["rope_parameters"].get("truncate", True)
    and case.config.get("norm_topk_prob", True)
]
MOE_CASES = [case.name for case in MODEL_CASES if case.config.get("num_experts")]
Load = Callable[..., LoadedModel]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load the model of a case; files and models are kept for the module."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def path_of(name: str, **form: Any) -> Path:
        folder = root / "-".join([name, *map(str, form.values())])
        return write_case(MODEL_CASES_BY_NAME[name], folder, **form)

    @cache
    def loaded(name: str, dtype: DType = F32, expand: str = "always", **form: Any) -> LoadedModel:
        return load_case(path_of(name, **form), dtype=dtype, expand=expand)

    return loaded


def test_every_case_has_a_golden_of_its_own_weights() -> None:
    hashes = {case.name: weights_sha256(case.weights()) for case in MODEL_CASES}

    assert {golden.case: golden.weights_sha256 for golden in GOLDENS} == hashes


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("prompt", ["short", "long"])
@pytest.mark.parametrize("golden", BY_CASE)
def test_logits_equal_transformers(
    golden: ModelGolden, prompt: str, dtype: DType, load: Load
) -> None:
    ids, positions = MODEL_CASES_BY_NAME[golden.case].prompts()[prompt]
    model = load(golden.case, dtype).model

    (logits,) = all_logits(model, [(ids, positions)])

    assert logits.dtype == dtype.numpy
    difference = compare(logits, golden.arrays[f"{prompt}.{dtype.name}"], "model", dtype.name)
    assert difference.is_within, difference.reason


class Drafting:
    """A model whose forward gives what its draft head makes of each token."""

    def __init__(self, model: DecoderForCausalLM, ids: Array) -> None:
        self.model, self.ids = model, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, input_ids: Array, batch: ForwardBatch) -> Array:
        """Return the head's hidden states ``[T, H]``."""
        hidden = self.model.forward(input_ids, batch)
        return self.model.draft(self.ids[batch.positions + 1], hidden, batch)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("golden", [p for p in BY_CASE if "draft.f64" in p.values[0].arrays])
def test_drafts_equal_the_layers_of_transformers(
    golden: ModelGolden, dtype: DType, kind: str, load: Load
) -> None:
    ids, positions = MODEL_CASES_BY_NAME[golden.case].prompts()["long"]
    drafting: Any = Drafting(load(golden.case, dtype, kind=kind).model, ids)

    (logits,) = all_logits(drafting, [(ids[:-1], positions[:-1])])
    (cut,) = all_logits(drafting, [(ids[:-1], positions[:-1])], [[9], [1], [12]])

    # A GGUF file has the norms in f32 with 1 added, rounded once more.
    tolerance = "f32" if kind == "gguf" else dtype.name
    for got in (logits, cut):
        difference = compare(got, golden.arrays[f"draft.{dtype.name}"], "model", tolerance)
        assert difference.is_within, difference.reason


@pytest.mark.parametrize("golden", [p for p in BY_CASE if "far.f64" in p.values[0].arrays])
def test_logits_at_large_positions_equal_transformers(golden: ModelGolden, load: Load) -> None:
    prompt = MODEL_CASES_BY_NAME[golden.case].prompts()["far"]
    model = load(golden.case, F64).model

    (logits,) = all_logits(model, [prompt])

    difference = compare(logits, golden.arrays["far.f64"], "model_far", "f64")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", ["llama_biases", "qwen3_window", "qwen3_moe_tied"])
def test_logits_in_half_are_f32_and_near_the_truth(name: str, dtype: DType, load: Load) -> None:
    golden = next(golden for golden in GOLDENS if golden.case == name)
    prompt = MODEL_CASES_BY_NAME[name].prompts()["long"]
    model = load(name, dtype).model

    (logits,) = all_logits(model, [prompt])

    assert logits.dtype == np.float32
    difference = compare(logits, golden.arrays["long.f64"], "model", dtype.name)
    assert difference.is_within, difference.reason


_CUT = ("llama_llama3", "qwen3_yarn", "qwen3_window", "qwen3_moe", "qwen3_5_layer_types")


# In f32 the sums of BLAS, which go by the number of rows, move one logit of qwen3_next_moe by 2e-5.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*product(_CUT, (F64,)), ("qwen3_moe", F32), ("qwen3_5_moe_mtp", F32), ("qwen3_next_moe", F64)],
    ids=str,
)
@pytest.mark.parametrize("steps", [[[1]] * 23, [[9], [14]], [[1], [21], [1]]], ids=len)
def test_prefill_equals_decode_and_split_prefill(
    name: str, steps: list[list[int]], dtype: DType, load: Load
) -> None:
    prompt = MODEL_CASES_BY_NAME[name].prompts()["long"]
    model = load(name, dtype).model

    (whole,), (cut,) = all_logits(model, [prompt]), all_logits(model, [prompt], steps)

    difference = compare(cut, whole, "model_self", dtype.name)
    assert difference.is_within, difference.reason


@pytest.mark.parametrize(
    "name",
    [
        "llama_mqa_three_layers",
        "qwen3_layer_types",
        "qwen3_moe_some_dense",
        "qwen3_5",
        "qwen3_5_moe",
    ],
)
def test_a_batch_equals_each_request_alone(name: str, load: Load) -> None:
    prompts = MODEL_CASES_BY_NAME[name].prompts()
    short, long = prompts["short"], prompts["long"]
    model = load(name, F64).model
    alone = [all_logits(model, [prompt])[0] for prompt in (short, long, short)]
    steps = [[12, 0, 5], [0, 9, 7], [0, 14, 0]]

    together = all_logits(model, [short, long, short], steps)

    for got, want in zip(together, alone, strict=True):
        difference = compare(got, want, "model_self", "f64")
        assert difference.is_within, difference.reason


@pytest.mark.parametrize("case", GGUF_CASES)
def test_gguf_export_equals_safetensors(case: ModelCase, load: Load) -> None:
    prompt = case.prompts()["long"]

    (stored,) = all_logits(load(case.name).model, [prompt])
    (gguf,) = all_logits(load(case.name, kind="gguf").model, [prompt])

    difference = compare(gguf, stored, "model_self", "f32")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize("name", [path.parent.name for path in ROOT.glob("models/*/llama.npz")])
def test_gguf_logits_equal_those_of_llama_cpp(name: str, load: Load) -> None:
    stored = np.load(ROOT / "models" / name / "llama.npz")["long.f32"]
    prompt = MODEL_CASES_BY_NAME[name].prompts()["long"]

    (logits,) = all_logits(load(name, kind="gguf").model, [prompt])

    difference = compare(logits, stored, "model", "f32")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize("name", ["qwen3_5_mtp", "qwen3_5_moe_mtp"])
def test_drafts_equal_those_of_llama_cpps_graph(name: str, load: Load) -> None:
    """Its draft head was given our hidden states and the token behind each."""
    stored = np.load(ROOT / "models" / name / "llama.npz")["draft.f32"]
    ids, positions = MODEL_CASES_BY_NAME[name].prompts()["long"]
    drafting: Any = Drafting(load(name, kind="gguf").model, ids)

    (logits,) = all_logits(drafting, [(ids[:-1], positions[:-1])])

    difference = compare(logits, stored, "model", "f32")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize(
    ("kind", "experts"),
    [("safetensors", "stacked"), ("safetensors", "fused"), ("gguf", "stacked"), ("gguf", "fused")],
)
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_some_dense"])
def test_experts_in_any_form_give_the_same_bits(
    name: str, kind: str, experts: str, load: Load
) -> None:
    prompt = MODEL_CASES_BY_NAME[name].prompts()["long"]

    (single,) = all_logits(load(name, expand="never").model, [prompt])
    (other,) = all_logits(load(name, expand="never", kind=kind, experts=experts).model, [prompt])

    assert other.tobytes() == single.tobytes()


@pytest.mark.parametrize("name", MOE_CASES)
def test_experts_differ_and_a_swap_of_two_is_seen(name: str, load: Load, tmp_path: Path) -> None:
    """The comparison would fail for a model that takes one expert for another."""
    golden = next(golden for golden in GOLDENS if golden.case == name)
    loaded = load_case(write_case(MODEL_CASES_BY_NAME[name], tmp_path))
    layers = [layer for layer in loaded.model.model.layers if isinstance(layer.mlp, SparseMoE)]
    down = layers[0].mlp.experts.down_proj
    down.parts = (np.roll(down.data, 1, axis=0),)

    (logits,) = all_logits(loaded.model, [MODEL_CASES_BY_NAME[name].prompts()["long"]])

    assert not compare(logits, golden.arrays["long.f32"], "model", "f32").is_within


def test_gguf_of_fused_projections_equals_one_of_split_projections(load: Load) -> None:
    prompt = MODEL_CASES_BY_NAME["qwen3_next"].prompts()["long"]

    fused = load("qwen3_next", kind="gguf", splits_projections=False)
    split = load("qwen3_next", kind="gguf")

    assert fused.config.linear_attention != split.config.linear_attention
    np.testing.assert_array_equal(
        all_logits(fused.model, [prompt])[0], all_logits(split.model, [prompt])[0]
    )


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_half_weights_in_parts_give_the_same_expanded_or_as_stored(
    kind: str, dtype: DType, load: Load, tmp_path: Path
) -> None:
    case = MODEL_CASES_BY_NAME["qwen3_tied"]
    path = write_case(case, tmp_path, kind=kind, dtype=dtype, parts=3)
    prompt = case.prompts()["long"]

    (expanded,) = all_logits(load_case(path, expand="always").model, [prompt])
    (as_stored,) = all_logits(load_case(path, expand="never").model, [prompt])

    difference = compare(as_stored, expanded, "model_self", "f32")
    assert difference.is_within, difference.reason


@pytest.mark.parametrize("wrong", [{"factor": 1.0}, {"rope_type": "default"}], ids=str)
def test_a_lost_rope_scaling_is_seen(wrong: dict[str, Any], load: Load, tmp_path: Path) -> None:
    """The comparison would fail for a model that ignores its llama3 block."""
    case = MODEL_CASES_BY_NAME["llama_llama3"]
    golden = next(golden for golden in GOLDENS if golden.case == case.name)
    rope = case.config["rope_parameters"] | wrong
    broken = ModelCase(case.name, case.config | {"rope_parameters": rope})

    (logits,) = all_logits(load_case(write_case(broken, tmp_path)).model, [case.prompts()["long"]])

    assert not compare(logits, golden.arrays["long.f32"], "model", "f32").is_within
