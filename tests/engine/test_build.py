"""Engines over real models: a tiny random one, and SmolLM2 answering in English."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, processors

from pyvt import hub
from pyvt.config import CacheGroup, engine_config
from pyvt.dispatch import use_backend
from pyvt.dispatch.backend import Backend
from pyvt.engine import build, memory_plan
from pyvt.engine.build import build_engine, plan
from pyvt.errors import CheckpointError, ConfigError, RequestError
from pyvt.kv_tier import MemoryConnector
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing.shape_models import ShapeModel
from pyvt.weights.resolve import open_model
from tests.engine.engine_backend import NAMES, needs
from tests.engine.tiny_model import CONFIG, EOS_TEXT, write_tiny_model

MIB = 2**20
PROMPTS = ["hello", "a much longer prompt that is cut into chunks", "x", "漢字と emoji 😀"]
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
SEEDED = [SamplingParams(max_tokens=16, seed=n, top_p=0.95, ignore_eos=True) for n in range(4)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def tokens(llm: LLM, prompts: Any, params: Any) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.fixture(scope="module")
def solo(tiny: Path) -> dict[str, list[tuple[int, ...]]]:
    """Tokens of each prompt run alone."""
    llm = LLM(str(tiny))
    return {
        "greedy": [tokens(llm, prompt, GREEDY)[0] for prompt in PROMPTS],
        "seeded": [
            tokens(llm, prompt, params)[0] for prompt, params in zip(PROMPTS, SEEDED, strict=True)
        ],
    }


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="batch"),
        pytest.param({"max_prefill_chunk": 3}, id="chunks"),
        pytest.param({"max_num_batched_tokens": 5, "max_num_seqs": 4}, id="small-budget"),
        pytest.param({"max_num_seqs": 1}, id="one-row"),
        pytest.param({"num_blocks": 20, "block_size": 4, "max_model_len": 80}, id="preemption"),
        pytest.param({"block_size": 1}, id="blocks-of-one"),
    ],
)
def test_engine_tokens_are_those_of_a_run_alone(
    tiny: Path, solo: dict[str, list[tuple[int, ...]]], settings: dict[str, Any]
) -> None:
    llm = LLM(str(tiny), **settings)

    assert tokens(llm, PROMPTS, GREEDY) == solo["greedy"]
    assert tokens(llm, PROMPTS, SEEDED) == solo["seeded"]
    llm.engine.core.scheduler.check_integrity()


def test_engine_takes_a_name_that_the_hub_knows(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hub, "obtain", lambda name: asked.append(name) or tiny)

    llm = LLM("smollm2-135m", num_blocks=20, max_model_len=80)

    assert asked == ["smollm2-135m"]
    assert len(llm.generate([5, 6], GREEDY)[0].outputs[0].token_ids) > 0


def test_engine_preemption_case_does_preempt(tiny: Path) -> None:
    llm = LLM(str(tiny), num_blocks=20, block_size=4, max_model_len=80)

    tokens(llm, PROMPTS, GREEDY)

    assert llm.engine.core.scheduler.stats().num_preemptions > 0


def test_engine_same_seed_same_tokens_and_other_seed_others(tiny: Path) -> None:
    llm = LLM(str(tiny))
    one, same, other = (SamplingParams(max_tokens=12, seed=s, ignore_eos=True) for s in (7, 7, 8))

    first, second, third = tokens(llm, ["hi"] * 3, [one, same, other])

    assert first == second != third


def test_engine_stream_equals_generate(tiny: Path) -> None:
    llm = LLM(str(tiny))

    pieces = [piece.outputs[0] for piece in llm.stream("hello", GREEDY)]

    whole = llm.generate("hello", GREEDY)[0].outputs[0]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids


def test_engine_chat_uses_the_models_template(tiny: Path) -> None:
    output = LLM(str(tiny)).chat([{"role": "user", "content": "hi"}], GREEDY)[0]

    assert output.prompt == "[user]hi[assistant]"


def test_engine_logits_not_finite_end_the_request_with_an_error(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", spoiled="model.norm.weight")
    llm = LLM(str(folder))

    output = llm.generate("hi", GREEDY)[0]

    assert output.outputs[0].finish_reason == "error"
    assert "finite" in str(output.error)


def test_engine_limits_are_the_unions_of_all_files(tiny: Path) -> None:
    """End ids of config.json and tokenizer; padding rows of the head are no tokens."""
    processor = build_engine(engine_config(str(tiny))).input_processor
    eos_id = processor.tokenizer.encode(EOS_TEXT)[0]

    assert processor.limits.eos_token_ids == {CONFIG["eos_token_id"], eos_id}
    assert processor.limits.vocab_size == 258
    assert processor.limits.max_model_len == 128


def test_engine_padding_row_as_prompt_is_refused(tiny: Path) -> None:
    with pytest.raises(RequestError, match="from 0 up to 257"):
        LLM(str(tiny)).generate([1, 258], GREEDY)


def test_build_reports_progress_to_the_end(tiny: Path) -> None:
    calls: list[tuple[int, int]] = []

    engine = build_engine(engine_config(str(tiny)), progress=lambda *sizes: calls.append(sizes))

    assert calls[0][0] == 0
    assert calls[-1][0] == calls[-1][1] > 0
    assert engine.model_load_ms > 0


@pytest.mark.parametrize(
    ("settings", "calls"),
    [pytest.param({"threads": 3}, [3], id="given"), pytest.param({}, [], id="auto")],
)
def test_build_threads_reach_blas_only_where_given(
    settings: dict[str, Any], calls: list[int], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []

    def take(num_threads: int) -> bool:
        got.append(num_threads)
        return True

    monkeypatch.setattr(build, "set_blas_threads", take)

    LLM(str(tiny), **settings)

    assert got == calls


def test_build_threads_reach_the_pool_of_the_backend(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    monkeypatch.setattr(build, "set_blas_threads", lambda num_threads: False)
    monkeypatch.setattr(
        build, "selected_backend", lambda: Backend(name="numpy", set_num_threads=got.append)
    )

    LLM(str(tiny), threads=3, backend="numpy")

    assert got == [3]


def test_build_threads_that_blas_does_not_take_are_a_warning(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(build, "set_blas_threads", lambda num_threads: False)
    monkeypatch.setattr(build.log, "warning", lambda text, *args: warnings.append(text % args))

    LLM(tiny, threads=3, backend="numpy")

    assert len(warnings) == 1
    assert warnings[0].startswith("device.threads=3 does not reach the BLAS")


def test_build_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", has_tokenizer=False)

    with pytest.raises(CheckpointError, match=r"expected tokenizer\.json"):
        LLM(str(folder))


def test_build_sampling_defaults_are_the_models(tmp_path: Path) -> None:
    asked = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    folder = write_tiny_model(tmp_path / "model", generation_config=asked)

    params = LLM(str(folder)).engine.default_params

    assert (params.temperature, params.top_k, params.top_p) == (0.6, 20, 0.95)


def test_build_impossible_sampling_default_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", generation_config={"top_p": 7.0})

    with pytest.raises(ConfigError, match="top_p"):
        LLM(str(folder))


@pytest.fixture
def own_answer() -> Iterator[None]:
    """``best_backend`` asks anew in the test, and after it."""
    memory_plan.best_backend.cache_clear()
    yield
    memory_plan.best_backend.cache_clear()


@pytest.mark.usefixtures("own_answer")
def test_build_auto_is_the_native_backend_where_it_loads(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan.backends, "available", lambda: ("cpu", "numpy"))
    monkeypatch.setattr(memory_plan.backends, "why_not", lambda name: None)

    planned = [
        plan(engine_config(str(tiny), dtype=dtype), open_model(tiny)).config.device
        for dtype in ("auto", "f64")
    ]

    assert [(device.backend, device.act) for device in planned] == [
        ("cpu", "q8"),
        ("numpy", "none"),
    ]


@pytest.mark.native
@pytest.mark.parametrize(
    ("model", "act", "multiplies_bf16", "want"),
    [
        ("tiny:bf16", "auto", True, "bf16"),
        ("tiny:bf16", "q8", True, "bf16"),
        ("tiny:bf16", "none", True, "f32"),
        ("tiny:bf16", "auto", False, "f32"),
        ("tiny:f32", "auto", True, "f32"),
        ("tiny-moe:bf16", "auto", True, "f32"),
    ],
)
def test_plan_auto_dtype_is_bf16_where_weights_are_and_products_of_it_are_faster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    act: str,
    multiplies_bf16: bool,
    want: str,
) -> None:
    monkeypatch.setenv("PYVT_HOME", str(tmp_path))
    own = Backend(name="cpu", multiplies_bf16=lambda: multiplies_bf16)
    monkeypatch.setattr(memory_plan, "backend_named", lambda name: own)
    path = ShapeModel.named(f"shape:{model}").gguf()

    planned = plan(engine_config(str(path), backend="cpu", act=act), open_model(path))

    assert planned.config.device.dtype == want
    assert planned.kv_specs[0].dtype.name == ("f16" if want == "f32" and act != "none" else want)


@pytest.mark.native
def test_build_gives_back_what_it_reserved_where_the_files_are_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    packer = SimpleNamespace(release_rest=lambda: told.append("released"))
    own = Backend(name="cpu", prepack=packer, reserve=lambda *sizes: told.append(sizes))  # type: ignore[arg-type]
    monkeypatch.setattr(build, "backend_named", lambda name: own)
    monkeypatch.setattr(build, "available_host_bytes", lambda: 8000)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 2000)

    with pytest.raises(CheckpointError):
        build_engine(engine_config(str(tmp_path), backend="cpu"))

    assert told == [(2000, 2000), "released"]


@pytest.mark.native
def test_build_is_not_hindered_by_a_file_that_it_does_not_need(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path)
    index = {
        "weight_map": dict.fromkeys(load_file(path / "model.safetensors"), "model.safetensors")
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "gone.safetensors").symlink_to(tmp_path / "nowhere")

    assert build_engine(engine_config(str(path), backend="cpu")).config.device.backend == "cpu"


@pytest.mark.native
def test_engine_on_native_kernels_needs_no_reference(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend("numpy")  # whatever was selected before, no choice of kernels is kept
    monkeypatch.setenv("PYVT_STRICT", "1")

    output = LLM(str(tiny), backend="cpu").generate("Hi", SamplingParams(max_tokens=4, seed=1))[0]

    assert len(output.outputs[0].token_ids) == 4


@pytest.mark.usefixtures("own_answer")
def test_build_auto_without_a_native_backend_says_why_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(memory_plan.backends, "available", lambda: ("numpy",))
    reasons = {"numpy": None}
    monkeypatch.setattr(
        memory_plan.backends, "why_not", lambda name: reasons.get(name, "no compiler was found")
    )
    monkeypatch.setattr(
        memory_plan.log, "warning", lambda text, *args: warnings.append(text % args)
    )

    engines = [build_engine(engine_config(str(tiny))) for _ in range(2)]

    assert [engine.config.device.backend for engine in engines] == ["numpy"] * 2
    assert warnings == ["backend cpu cannot be used, the reference computes: no compiler was found"]


@pytest.mark.parametrize(
    ("free_mib", "max_model_len"),
    [pytest.param(90, 128, id="small"), pytest.param(20_000, 128, id="large")],
)
def test_plan_uses_what_fits(tiny: Path, free_mib: int, max_model_len: int) -> None:
    planned = plan(engine_config(str(tiny)), open_model(tiny), free_bytes=free_mib * MIB)

    assert planned.config.max_model_len == max_model_len
    needed = planned.weight_bytes + planned.activation_bytes + planned.kv_bytes
    assert 0 < needed <= planned.free_bytes
    assert "max_model_len=128" in planned.summary()


@pytest.mark.parametrize("free_mib", [0, 10])
def test_plan_without_room_says_what_lacks_and_what_to_do(tiny: Path, free_mib: int) -> None:
    with pytest.raises(ConfigError, match="MiB too little; lower max_model_len or"):
        plan(engine_config(str(tiny)), open_model(tiny), free_bytes=free_mib * MIB)


def test_plan_of_an_absurd_context_leaves_room_for_its_tables(tmp_path: Path) -> None:
    """A row of the rotary table and of each request's tokens is half a KV token here."""
    path = write_tiny_model(tmp_path)
    changed = CONFIG | {"max_position_embeddings": 2**31 - 1}
    (path / "config.json").write_text(json.dumps(changed))
    free_bytes = 512 * MIB

    planned = plan(engine_config(str(path)), open_model(path), free_bytes=free_bytes)

    num_positions = planned.config.max_model_len
    assert isinstance(num_positions, int)
    table_bytes = num_positions * (8 * 4 + 64 * 8)
    assert num_positions > 2**17
    assert planned.kv_bytes + table_bytes < free_bytes * 0.6


def test_plan_given_blocks_need_no_free_memory(tiny: Path) -> None:
    planned = plan(engine_config(str(tiny), num_blocks=4), open_model(tiny), free_bytes=0)

    assert (planned.config.cache.num_blocks, planned.config.max_model_len) == (4, 64)


@pytest.mark.parametrize(("free_mib", "is_expanded"), [(512, False), (4096, True)])
def test_plan_of_smollm2_in_a_small_machine_is_sane(
    smollm2_path: Path, free_mib: int, is_expanded: bool
) -> None:
    files = open_model(smollm2_path)

    config = engine_config(str(smollm2_path), backend="numpy")
    planned = plan(config, files, free_bytes=free_mib * MIB)

    needed = planned.weight_bytes + planned.activation_bytes + planned.kv_bytes
    assert planned.is_expanded is is_expanded
    assert needed <= planned.free_bytes
    assert 1024 < planned.config.max_model_len <= 8192
    # Matrices, then the token embeddings, then norms.
    assert planned.weight_formats == ("q4_1", "q8_0", "f32")


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LLM:
    """In exact arithmetic: int8 activations decide some near ties of its first words otherwise."""
    return LLM(str(smollm2_path), max_model_len=512, act="none")


def test_smollm2_answers_a_question(smollm2: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]

    output = smollm2.chat(question, SamplingParams(max_tokens=20, temperature=0))[0]

    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"
    assert output.metrics.ttft_ms is not None


def test_smollm2_batch_of_texts_equals_each_alone(smollm2: LLM) -> None:
    prompts = ["def fibonacci(n):", "The sun rises in the"]
    params = SamplingParams(max_tokens=8, temperature=0)

    together = smollm2.generate(prompts, params)

    texts = [output.outputs[0].text for output in together]
    assert texts == ["\n    if n == 0:\n       ", " sky, casting a golden glow over the"]
    alone = [smollm2.generate(prompt, params)[0].outputs[0].text for prompt in prompts]
    assert texts == alone


def test_smollm2_stop_string_and_logprobs(smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0, stop=[" is"], logprobs=3)

    completion = smollm2.chat(
        [{"role": "user", "content": "What is the capital of France?"}], params
    )[0].outputs[0]

    assert completion.text == "The capital of France"
    assert completion.stop_reason == " is"
    assert completion.logprobs is not None
    assert [position.rank for position in completion.logprobs] == [1] * len(completion.token_ids)
    assert completion.logprobs[0].top[0].text == "The"


@pytest.mark.parametrize("template", ["{{ bos_token }}", ""], ids=["template-adds", "none-adds"])
def test_engine_prompt_has_the_bos_of_its_template_or_of_its_tokenizer_never_both(
    template: str, tmp_path: Path
) -> None:
    """A completion has the tokenizer's BOS, a chat what its template writes."""
    folder = write_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<bos>"])
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    template += "{% for m in messages %}{{ m.content }}{% endfor %}"
    config = {"bos_token": "<bos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    llm = LLM(str(folder))
    params = SamplingParams(max_tokens=1, temperature=0)

    chat = llm.chat([{"role": "user", "content": "hi"}], params)[0].prompt_token_ids
    text = llm.generate("hi", params)[0].prompt_token_ids

    assert text[0] == bos
    assert text.count(bos) == 1
    assert chat.count(bos) == template.count("bos_token")
    assert chat[-2:] == text[-2:]


def test_chat_template_of_a_file_replaces_the_models_own(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "own"}))
    file = tmp_path / "other.jinja"
    file.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "hi"}]

    own = LLM(str(folder)).engine.input_processor
    other = LLM(str(folder), chat_template=str(file)).engine.input_processor

    assert own.render(messages).text == "own"
    assert other.render(messages).text == "<user>hi"
    with pytest.raises(CheckpointError, match=r"nowhere\.jinja.*readable file"):
        LLM(str(folder), chat_template=str(tmp_path / "nowhere.jinja"))


@pytest.mark.parametrize("backend", NAMES)
def test_padding_of_the_vocabulary_is_never_sampled(tmp_path: Path, backend: str) -> None:
    """A random model has its best token among 142 rows that the tokenizer knows nothing of."""
    folder = write_tiny_model(tmp_path / "padded", vocab_size=400)
    settings = ({"temperature": 0}, {"temperature": 0, "logprobs": 1}, {"temperature": 1.5})
    params = [SamplingParams(max_tokens=20, seed=5, ignore_eos=True, **s) for s in settings]

    outputs = LLM(str(folder), backend=needs(backend)).generate(["x"] * 3, params)

    for output in outputs:
        assert len(output.outputs[0].token_ids) == 20
        assert max(output.outputs[0].token_ids) < 258
    assert outputs[1].outputs[0].logprobs is not None
    assert any(entry.top[0].token_id >= 258 for entry in outputs[1].outputs[0].logprobs)


def test_connector_gives_a_second_engine_what_the_first_one_computed(tiny: Path) -> None:
    config = engine_config(str(tiny), block_size=4, kv_cache_dtype="f32")
    store: dict[Any, bytes] = {}
    made: list[MemoryConnector] = []

    def make(block_size: int, groups: tuple[CacheGroup, ...]) -> MemoryConnector:
        made.append(MemoryConnector(block_size, groups=groups, store=store))
        return made[-1]

    outputs = []
    for _ in range(2):
        llm = LLM.from_engine(build_engine(config, make_connector=make))
        outputs += llm.generate(PROMPTS[1], GREEDY)
        llm.shutdown()

    first, second = outputs
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert (first.metrics.num_cached_tokens, made[0].num_loaded) == (0, 0)
    assert second.metrics.num_cached_tokens == made[1].num_loaded * 4 > 0


class Watching(MemoryConnector):
    """Notes the arrays that it gets."""

    def register_kv_caches(self, caches: Any, layout: Any) -> None:
        """Keep them."""
        self.caches, self.layout = caches, layout
        self.saved: list[tuple[int, bool, int]] = []
        super().register_kv_caches(caches, layout)

    def save_kv_layer(self, layer: int, kv: Any, attn_meta: Any) -> None:
        """Note whose arrays they are."""
        is_own = all(kv[i] is self.caches[f"layers.{layer}.{part}"] for i, part in enumerate("kv"))
        self.saved.append((layer, is_own, attn_meta.num_tokens))


def test_connector_gets_the_arrays_of_layers_and_how_they_lie(tiny: Path) -> None:
    made: list[Watching] = []

    def make(block_size: int, groups: tuple[CacheGroup, ...]) -> Watching:
        made.append(Watching(block_size, groups=groups))
        return made[-1]

    config = engine_config(str(tiny), block_size=4, num_blocks=32)
    llm = LLM.from_engine(build_engine(config, make_connector=make))
    llm.generate("hello", SamplingParams(max_tokens=2, temperature=0, ignore_eos=True))
    llm.shutdown()

    (connector,) = made
    assert sorted(connector.caches) == [f"layers.{n}.{part}" for n in (0, 1) for part in "kv"]
    assert connector.caches["layers.0.k"].shape == (33, 4, 2, 8)
    assert connector.layout.block_size == 4
    assert [group.kind for group in connector.layout.groups] == ["full"]
    assert connector.saved == [(0, True, 5), (1, True, 5), (0, True, 1), (1, True, 1)]


def test_connector_needs_the_names_of_blocks(tiny: Path) -> None:
    config = engine_config(str(tiny), enable_prefix_caching=False)

    with pytest.raises(ConfigError, match="expected true with a KV connector"):
        build_engine(config, make_connector=lambda size, groups: MemoryConnector(size))
