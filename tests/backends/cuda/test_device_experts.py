"""Experts, linear attention, draft heads and blocks in whole tiny models on the CUDA backend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config.model import ModelConfig
from pyvt.dispatch import reference_call_counts, use_backend
from pyvt.tensor.dtype import BF16, DTYPES, F32, F64, DType
from pyvt.testing.checkpoints import write_gguf
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_logits, gguf_metadata, load_case, write_case
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare
from pyvt.weights.gguf_names import gguf_name
from tests.backends.cuda.device_engine import engine_on, tokens_of
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE
from tests.engine.tiny_model import HYBRID_CONFIG, write_tiny_model

pytestmark = [NEEDS_DEVICE]

CASES = (
    "qwen3_moe",
    "qwen3_moe_as_they_are",
    "qwen3_5",
    "qwen3_5_layer_types",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen3_next_moe",
)
STEPS = [[1, 0], [5, 12], [3, 0], [3, 11]]
PROMPTS = ([5, 6, 7, 5, 6, 7], [8, 9, 10, 11], [12, 5, 6, 7, 8], [40, 41])
# The formats of the matrices of a file, by what their names have; all rows are of 256.
MIXES = {
    "q4_k_m": {"": "q4_k", "v_proj": "q6_k", "down_proj": "q6_k", "embed": "q8_0"},
    "q8_0": {"": "q8_0"},
    "q4_0": {"": "q4_0", "k_proj": "q5_0", "up_proj": "q5_k", "embed": "q6_k"},
    "mxfp4": {"": "mxfp4", "q_proj": "nvfp4", "embed": "q8_0"},
}
# An MoE whose rows are whole blocks of every format.
BLOCKS = MODEL_CASES_BY_NAME["qwen3_moe"].config | {
    "hidden_size": 256,
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_experts": 3,
}


def _num_reference_calls() -> int:
    return sum(reference_call_counts().values())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_tiny_model_of_experts_or_states(name: str, dtype: DType, tmp_path: Path) -> None:
    case = MODEL_CASES_BY_NAME[name]
    path = write_case(case, tmp_path / "m", dtype=dtype)
    prompts = list(case.prompts().values())[:2]
    use_backend("numpy")
    # Against f64, since the reference's own f32 is off by as much as the device's.
    want = all_logits(load_case(path, dtype=F64, expand="never").model, prompts)
    use_backend(NAME)
    model = load_case(path, expand="never").model
    num_reference_calls = _num_reference_calls()

    got = all_logits(model, prompts)
    chunked = all_logits(model, prompts, steps=STEPS)

    for ours, again, reference in zip(got, chunked, want, strict=True):
        for each in (ours, again):
            difference = compare(each, reference, "model", "f32")
            assert difference.is_within, difference.reason
    assert _num_reference_calls() == num_reference_calls


def _gguf_in_blocks(path: Path, mix: dict[str, str]) -> Path:
    """Write the MoE with matrices in the formats of a mix."""
    case, rng = ModelCase("blocks", BLOCKS), np.random.default_rng(0)
    config = ModelConfig.from_hf(case.config)
    tensors: dict[str, Any] = {}
    stacks: dict[str, list[Any]] = {}
    for name, array in case.weights().items():
        if ".experts." in name:
            head, tail = name.split(".experts.")
            stacks.setdefault(f"{head}.experts.{tail.split('.', 1)[1]}", []).append(array)
            continue
        tensors[name] = array
    tensors |= {name: np.stack(arrays) for name, arrays in stacks.items()}
    written: dict[str, Any] = {}
    for name, array in tensors.items():
        stored = gguf_name("qwen3moe", name)
        assert stored is not None, f"{name}: has a name in GGUF"
        is_matrix = array.ndim >= 2 and "mlp.gate." not in name
        chosen = [kind for part, kind in mix.items() if part in name][-1]
        size = array.shape[-1] ** -0.5
        written[stored] = (
            random_weight(rng, DTYPES[chosen], *array.shape, magnitude=size) if is_matrix else array
        )
    return write_gguf(path, gguf_metadata(config), written)


@pytest.mark.parametrize("act", ["none", "q8"])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_tiny_model_in_blocks(mix: dict[str, str], act: str, tmp_path: Path) -> None:
    path = _gguf_in_blocks(tmp_path / "m.gguf", mix)
    ids = np.arange(14)
    use_backend("numpy")
    want = all_logits(load_case(path, expand="never", act=act).model, [(ids, ids)])[0]
    use_backend(NAME)

    model = load_case(path, expand="never", act=act).model

    got = all_logits(model, [(ids, ids)])[0]
    chunked = all_logits(model, [(ids, ids)], steps=[[1], [3], [10]])[0]
    # With int8 activations a last bit decides now and then between two codes.
    op_class = "model_self" if act == "none" else "q8_against_none"
    for each in (got, chunked):
        difference = compare(each, want, op_class, "f32")
        assert difference.is_within, difference.reason


@pytest.fixture(scope="module")
def hybrid_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny") / "m"
    return str(write_tiny_model(folder, config=HYBRID_CONFIG))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", [None, "mtp", "ngram"])
def test_hybrid_engine_gives_the_tokens_of_the_reference(
    hybrid_path: str, method: str | None, temperature: float
) -> None:
    """States go back over wrong drafts; the head's hidden states stay on the device."""
    settings = {} if method is None else {"speculation": method, "num_speculative_tokens": 2}
    want = tokens_of(engine_on(hybrid_path, "numpy"), PROMPTS, temperature=temperature)

    engine = engine_on(hybrid_path, NAME, **settings)

    assert tokens_of(engine, PROMPTS, temperature=temperature) == want


@pytest.mark.parametrize("kv_cache_dtype", ["bf16", "fp8_e4m3"])
def test_hybrid_engine_with_narrow_keys(hybrid_path: str, kv_cache_dtype: str) -> None:
    want = tokens_of(
        engine_on(hybrid_path, "numpy", kv_cache_dtype=kv_cache_dtype), PROMPTS, temperature=0.0
    )

    engine = engine_on(hybrid_path, NAME, kv_cache_dtype=kv_cache_dtype)

    assert tokens_of(engine, PROMPTS, temperature=0.0) == want


def test_graphs_of_a_hybrid_model_equal_eager_steps(hybrid_path: str) -> None:
    engines = [engine_on(hybrid_path, NAME) for _ in range(2)]
    graphs = [engine.core.runner.graphs for engine in engines]
    graphs[1].is_enabled = False

    captured, eager = (tokens_of(engine, PROMPTS, temperature=0.7) for engine in engines)

    assert captured == eager
    assert graphs[0].num_replays > 0
