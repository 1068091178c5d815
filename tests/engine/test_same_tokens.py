"""What a request gets does not depend on how it was served, to the bit of the logits.

A request alone in blocks as long as the context, in one chunk and with the prefix cache off, is the
measure: it is the fixed cache that paged tokens must equal. On the reference, whose products go
through BLAS, and on a device tokens are compared, and log probabilities closely; on the native
backend these are equal to the last bit.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.config.model import ModelConfig
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.dtype import Q4_0, Q8_0
from pyvt.testing.checkpoints import write_gguf, write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase, stacked_experts
from pyvt.testing.model_runs import gguf_metadata
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.shape_models import byte_level_tokenizer
from pyvt.weights.gguf_names import gguf_name
from tests.engine.engine_backend import IS_REFERENCE, NAMES, ON_BACKEND, needs
from tests.engine.tiny_model import CONFIG, HYBRID_CONFIG, write_tiny_model

CONTEXT = 64
SHARED = [(7 * i) % 250 for i in range(21)]
PROMPTS = [SHARED, [*SHARED, 5], SHARED[:16], [9, 8, 7], [*SHARED[:12], *range(30, 45)], SHARED]
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "chunks": {"max_prefill_chunk": 3, "max_num_batched_tokens": 9, "max_num_seqs": 8},
    "rows": {"max_num_seqs": 2},
    "preemption": {"num_blocks": 24, "block_size": 4},
    "blocks-of-one": {"block_size": 1},
    "cache-off": {"enable_prefix_caching": False},
    "preemption-cache-off": {"num_blocks": 24, "block_size": 4, "enable_prefix_caching": False},
}
# What differs between kinds of models on the reference; the scheduler is the same for all.
FEW_WAYS = ("chunks", "preemption")
Answer = tuple[tuple[int, ...], tuple[float, ...]]


KINDS: dict[str, dict[str, Any]] = {
    "windowed": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 8,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "experts": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "hybrid": HYBRID_CONFIG,
    "hybrid-experts": HYBRID_CONFIG
    | MODEL_CASES_BY_NAME["qwen3_5_moe_mtp"].config
    | {"vocab_size": CONFIG["vocab_size"]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models: a plain one, one with windows in two of three layers, with experts, and
    with linear attention.

    ``experts-q8`` has its matrices in blocks, so that the native backend quantises activations.
    """
    root = tmp_path_factory.mktemp("models")
    found = {"plain": write_tiny_model(root / "plain")}
    files = {
        path.name: path.read_text()
        for path in found["plain"].glob("*.json")
        if path.name.startswith(("tokenizer", "generation"))
    }
    for kind, changes in KINDS.items():
        case = ModelCase(kind, CONFIG | changes)
        found[kind] = write_safetensors(root / kind, case.weights(), case.config, files=files)
    found["experts-q8"] = _in_blocks(ModelCase("experts", CONFIG | KINDS["experts"]), root)
    return found


def _in_blocks(case: ModelCase, root: Path) -> Path:
    """Write a GGUF file of the case with random blocks for all matrices but the router."""
    rng, tensors = np.random.default_rng(0), {}
    for name, array in stacked_experts(case.weights()).items():
        is_plain = array.ndim == 1 or name.endswith("mlp.gate.weight")
        stored = gguf_name("qwen3moe", name)
        assert stored is not None, f"{name}: has a name in GGUF"
        dtype = Q4_0 if "up_proj" in name else Q8_0
        tensors[stored] = array if is_plain else random_weight(rng, dtype, *array.shape)
    config = ModelConfig.from_hf(case.config)
    metadata = gguf_metadata(config) | byte_level_tokenizer(config)
    return write_gguf(root / "experts.gguf", metadata, tensors)


def answers(engine: LLMEngine, prompts: list[list[int]]) -> list[Answer]:
    """Return tokens and their log probabilities of prompts that run together."""
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params_of(prompt))
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests:
        done |= {output.request_id: output for output in engine.step()}
        engine.core.scheduler.check_integrity()
    return [answer_of(done[str(i)]) for i in range(len(prompts))]


def params_of(prompt: list[int]) -> SamplingParams:
    return SamplingParams(
        max_tokens=14, temperature=0.8, seed=sum(prompt), logprobs=0, ignore_eos=True
    )


def answer_of(output: RequestOutput) -> Answer:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return completion.token_ids, tuple(p.taken.logprob for p in completion.logprobs)


@cache
def alone(path: Path, backend: str) -> list[Answer]:
    """Return each answer of a run alone in one block as long as the context."""
    engine = engine_of(path, backend, block_size=CONTEXT, enable_prefix_caching=False)
    return [answers(engine, [prompt])[0] for prompt in PROMPTS]


def engine_of(path: Path, backend: str, **settings: Any) -> LLMEngine:
    return build_engine(
        engine_config(
            str(path),
            **(ON_BACKEND | {"backend": backend, "max_model_len": CONTEXT} | settings),
        )
    )


def compare(got: list[Answer], want: list[Answer], backend: str) -> None:
    assert [tokens for tokens, _ in got] == [tokens for tokens, _ in want]
    if backend == "cpu":
        assert got == want
    for (_, ours), (_, theirs) in zip(got, want, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


# The reference is slow with these, and they differ from others only in its ops.
SLOW_ON_REFERENCE = ("hybrid-experts", "experts-q8")
EVERY_KIND = pytest.mark.parametrize(
    ("kind", "backend"),
    [
        pytest.param(kind, backend, marks=pytest.mark.slow)
        if backend == "numpy" and kind in SLOW_ON_REFERENCE
        else (kind, backend)
        for backend in NAMES
        for kind in ("plain", *KINDS, "experts-q8")
    ],
    indirect=["backend"],
)


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> str:
    return needs(str(request.param))


@EVERY_KIND
def test_every_way_of_serving_gives_the_answers_of_a_run_alone(
    folders: dict[str, Path], kind: str, backend: str
) -> None:
    want = alone(folders[kind], backend)
    num_preemptions = {}

    for name in WAYS if kind == "plain" or backend != "numpy" else FEW_WAYS:
        settings = dict(WAYS[name])
        if kind == "windowed" and "num_blocks" in settings:
            settings["num_blocks"] = 48  # three groups: what the plan wants for one request
        engine = engine_of(folders[kind], backend, **settings)
        compare(answers(engine, PROMPTS), want, backend)
        num_preemptions[name] = engine.core.scheduler.stats().num_preemptions

    assert num_preemptions["preemption"] > 0


@EVERY_KIND
def test_prefix_cache_cold_and_warm_give_the_same(
    folders: dict[str, Path], kind: str, backend: str
) -> None:
    want = alone(folders[kind], backend)
    engine = engine_of(folders[kind], backend, block_size=4)

    cold = answers(engine, PROMPTS)
    before = engine.core.scheduler.stats().prefix_hits
    warm = answers(engine, PROMPTS)
    hits = engine.core.scheduler.stats().prefix_hits - before
    engine.core.scheduler.reset_prefix_cache()
    again = answers(engine, PROMPTS)

    compare(cold, want, backend)
    compare(warm, want, backend)
    compare(again, want, backend)
    assert hits >= sum((len(prompt) - 1) // 4 * 4 for prompt in PROMPTS)


@pytest.mark.parametrize("kv_cache_dtype", ["f32", "bf16", "f16", "fp8_e4m3"])
def test_cache_of_any_dtype_gives_the_answers_of_a_run_alone(
    folders: dict[str, Path], kv_cache_dtype: str, backend: str
) -> None:
    want = answers(
        engine_of(
            folders["plain"],
            backend,
            block_size=CONTEXT,
            enable_prefix_caching=False,
            kv_cache_dtype=kv_cache_dtype,
        ),
        PROMPTS[:1],
    )
    engine = engine_of(folders["plain"], backend, block_size=4, kv_cache_dtype=kv_cache_dtype)

    got = [answers(engine, PROMPTS)[0] for _ in range(2)]

    compare(got, want * 2, backend)


def test_cache_of_fewer_bits_is_a_cache_of_its_own(folders: dict[str, Path]) -> None:
    """The dtypes do differ: nothing falls back to a wider cache unseen."""
    found = {
        kv_cache_dtype: answers(
            engine_of(folders["plain"], NAMES[0], kv_cache_dtype=kv_cache_dtype), PROMPTS[:1]
        )[0]
        for kv_cache_dtype in ("f32", "bf16", "f16", "fp8_e4m3")
    }

    assert len({logprobs for _, logprobs in found.values()}) == 4


@pytest.mark.slow
@pytest.mark.skipif(not IS_REFERENCE, reason="a real model takes hours on an emulator")
def test_smollm2_answers_do_not_depend_on_the_way(smollm2_path: Path, backend: str) -> None:
    prompts = [[100 + (7 * i) % 900 for i in range(n)] for n in (40, 41, 33, 5, 50)]
    engine = engine_of(smollm2_path, backend, block_size=CONTEXT, enable_prefix_caching=False)
    want = [answers(engine, [prompt])[0] for prompt in prompts]

    for settings in ({}, {"max_prefill_chunk": 16}, {"num_blocks": 6}):
        engine = engine_of(smollm2_path, backend, **settings)
        compare(answers(engine, prompts), want, backend)
        compare(answers(engine, prompts), want, backend)
