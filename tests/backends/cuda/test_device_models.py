"""Whole tiny models and the engine on the CUDA backend against the reference."""

from pathlib import Path

import pytest

from pyvt.dispatch import reference_call_counts, use_backend
from pyvt.tensor.dtype import BF16, F16, F32, DType
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import all_logits, load_case, write_case
from pyvt.testing.tolerance import compare
from tests.backends.cuda.device_engine import engine_on, tokens_of
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE
from tests.engine.tiny_model import write_tiny_model

pytestmark = [NEEDS_DEVICE]

CASES = ("llama", "llama_biases", "llama_tied", "llama_yarn", "qwen3", "qwen3_tied")
PROMPTS = ([5, 6, 7], [8, 9, 10, 11], [12, 5, 6, 7, 8], [40, 41])


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_tiny_model_equals_the_reference(name: str, dtype: DType, tmp_path: Path) -> None:
    case = MODEL_CASES_BY_NAME[name]
    path = write_case(case, tmp_path / "m", dtype=dtype)
    prompts = list(case.prompts().values())[:2]
    use_backend("numpy")
    want = all_logits(load_case(path, expand="never").model, prompts)
    use_backend(NAME)
    num_reference_calls = sum(reference_call_counts().values())

    model = load_case(path, expand="never").model

    got = all_logits(model, prompts)
    chunked = all_logits(model, prompts, steps=[[1, 0], [5, 12], [3, 0], [3, 11]])
    for ours, again, reference in zip(got, chunked, want, strict=True):
        for each in (ours, again):
            difference = compare(each, reference, "model_self", "f32")
            assert difference.is_within, difference.reason
    # The table of angles, made once on the host.
    assert sum(reference_call_counts().values()) == num_reference_calls + 1


SAMPLINGS = {
    "greedy": {"temperature": 0},
    "random": {"temperature": 0.8},
    "filtered": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_engine_gives_the_tokens_of_the_reference(
    sampling: dict[str, object], tiny_path: str
) -> None:
    want = tokens_of(engine_on(tiny_path, "numpy"), PROMPTS, **sampling)

    assert tokens_of(engine_on(tiny_path, NAME), PROMPTS, **sampling) == want


def test_steps_from_graphs_equal_eager_steps(tiny_path: str) -> None:
    engines = [engine_on(tiny_path, NAME) for _ in range(2)]
    graphs = [engine.core.runner.graphs for engine in engines]
    graphs[1].is_enabled = False

    captured, eager = (tokens_of(engine, PROMPTS, temperature=0.7) for engine in engines)

    assert captured == eager
    assert (graphs[0].num_replays, graphs[1].num_replays) == (6, 0)
