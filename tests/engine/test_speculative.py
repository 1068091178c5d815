"""Speculative decoding through the engine: the tokens are those without it, whatever is asked."""

from pathlib import Path
from typing import Any

import pytest

from pyvt.errors import ConfigError
from pyvt.llm import LLM
from pyvt.outputs import RequestOutput
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams
from tests.engine.engine_backend import EXACT, IS_REFERENCE
from tests.engine.tiny_model import CONFIG, HYBRID_CONFIG, write_tiny_model

CLOSE = 1e-9 if IS_REFERENCE else 1e-4
PROMPTS = ["abcabcabcabc", "hello hello hello hello", "漢字漢字漢字", "x"]
SETTINGS = [
    pytest.param({"temperature": 0.0}, id="greedy"),
    pytest.param({"temperature": 0.8, "seed": 3}, id="sampled"),
    pytest.param({"temperature": 1.5, "seed": 3, "top_k": 4, "top_p": 0.9}, id="cut"),
    pytest.param({"temperature": 0.0, "repetition_penalty": 1.3}, id="repetition"),
    pytest.param(
        {"temperature": 0.5, "seed": 1, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        id="penalties",
    ),
    pytest.param({"temperature": 0.0, "ignore_eos": False, "min_tokens": 30}, id="min-tokens"),
    pytest.param({"temperature": 0.0, "stop": ["a", "\ufffd"], "min_tokens": 5}, id="stop"),
    pytest.param({"temperature": 0.0, "stop_token_ids": list(range(60, 90))}, id="stop-ids"),
    pytest.param({"temperature": 0.0, "bad_words": ["bc", "ll"]}, id="bad-words"),
    pytest.param({"temperature": 0.0, "logit_bias": {97: 9.0, 98: 9.1}}, id="bias"),
]


@pytest.fixture(scope="module", params=[CONFIG, HYBRID_CONFIG], ids=["plain", "hybrid"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plain model, and one with linear attention, whose states go back over wrong drafts."""
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m", config=request.param))


def llm_of(folder: str, num_drafts: int, **settings: Any) -> LLM:
    chosen = EXACT | settings
    if num_drafts:
        chosen |= {
            "speculation": "ngram",
            "num_speculative_tokens": num_drafts,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        }
    return LLM(folder, **chosen)


@pytest.fixture(scope="module")
def plain(folder: str) -> LLM:
    return llm_of(folder, 0)


@pytest.fixture(scope="module")
def speculating(folder: str) -> LLM:
    return llm_of(folder, 5)


def params_of(settings: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 36, "ignore_eos": True} | settings)


def facts(outputs: list[RequestOutput]) -> list[Any]:
    return [
        (o.outputs[0].token_ids, o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs
    ]


@pytest.mark.parametrize("settings", SETTINGS)
def test_answers_are_those_without_speculation(
    plain: LLM, speculating: LLM, settings: dict[str, Any]
) -> None:
    params = params_of(settings)

    assert facts(speculating.generate(PROMPTS, params)) == facts(plain.generate(PROMPTS, params))


@pytest.mark.parametrize(
    "structure",
    [
        pytest.param({"json": {}}, id="any-json"),
        pytest.param({"regex": "(abc ){3,}"}, id="regex"),
        pytest.param({"json": {"type": "array", "items": {"enum": ["ab", "cd"]}}}, id="array"),
        pytest.param({"choice": ["abcabc", "abcabd"]}, id="choice"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_structured_answers_are_those_without_speculation(
    plain: LLM, speculating: LLM, structure: dict[str, Any], temperature: float
) -> None:
    params = SamplingParams(
        max_tokens=36,
        temperature=temperature,
        seed=2,
        structured_outputs=StructuredOutputsParams(**structure),
    )

    assert facts(speculating.generate(PROMPTS, params)) == facts(plain.generate(PROMPTS, params))


@pytest.mark.parametrize("num_drafts", [1, 2, 8])
def test_number_of_drafts_does_not_matter(folder: str, plain: LLM, num_drafts: int) -> None:
    params = params_of({"temperature": 0.0})

    assert facts(llm_of(folder, num_drafts).generate(PROMPTS, params)) == facts(
        plain.generate(PROMPTS, params)
    )


def test_preemption_and_chunks_do_not_matter(folder: str, plain: LLM) -> None:
    """KV for one and a half requests, and prompts cut into pieces of three tokens."""
    llm = llm_of(
        folder,
        4,
        num_blocks=18,
        block_size=4,
        max_model_len=72,
        max_prefill_chunk=3,
        max_num_batched_tokens=16,
        max_num_seqs=4,
    )
    params = params_of({"max_tokens": 40, "temperature": 0.0})

    outputs = llm.generate(PROMPTS, params)

    assert facts(outputs) == facts(plain.generate(PROMPTS, params))
    assert llm.engine.core.scheduler.stats().num_preemptions > 0
    assert llm.engine.core.stats.spec_decode_num_accepted_tokens > 0


def test_logprobs_are_those_of_the_tokens(plain: LLM, speculating: LLM) -> None:
    params = params_of({"temperature": 0.0, "logprobs": 2, "max_tokens": 30})

    want = plain.generate(PROMPTS, params)
    got = speculating.generate(PROMPTS, params)

    for one, other in zip(got, want, strict=True):
        for position, wanted in zip(
            one.outputs[0].logprobs or (), other.outputs[0].logprobs or (), strict=True
        ):
            assert position.taken.token_id == wanted.taken.token_id
            assert position.taken.logprob == pytest.approx(wanted.taken.logprob, abs=CLOSE)
            assert position.rank == wanted.rank


def test_stream_gives_the_same_text(plain: LLM, speculating: LLM) -> None:
    params = params_of({"temperature": 0.0})

    text = "".join(output.outputs[0].text for output in speculating.stream(PROMPTS[0], params))

    assert text == plain.generate(PROMPTS[0], params)[0].outputs[0].text


@pytest.mark.native
def test_native_backend_is_lossless_to_the_bit_of_the_logprobs(folder: str) -> None:
    settings = {"backend": "cpu", "dtype": "f32"}
    params = [
        params_of({"temperature": 0.0, "logprobs": 5}),
        params_of({"temperature": 0.7, "seed": 1, "logprobs": 5, "repetition_penalty": 1.2}),
    ] * 2

    want = llm_of(folder, 0, **settings).generate(PROMPTS, params)
    drafting = llm_of(folder, 5, **settings)
    got = drafting.generate(PROMPTS, params)

    runner: Any = drafting.engine.core.runner
    shapes = runner.graphs._recorded
    assert any(num_tokens > num_reqs for num_reqs, num_tokens, _ in shapes), "no drafts in a plan"
    assert None not in shapes.values()
    assert [o.outputs[0].logprobs for o in got] == [o.outputs[0].logprobs for o in want]


def test_stats_count_drafts_by_vllms_names(folder: str) -> None:
    llm = llm_of(folder, 3)
    bias = {97: 80.0}  # one token for ever, so all drafts are right

    llm.generate("x", params_of({"temperature": 0.0, "logit_bias": bias, "max_tokens": 21}))

    stats = llm.engine.core.stats
    assert stats.num_generation_tokens == 21
    assert stats.spec_decode_num_accepted_tokens == stats.spec_decode_num_draft_tokens
    assert stats.spec_decode_acceptance_rate == 1.0
    assert stats.num_steps == 21 - stats.spec_decode_num_accepted_tokens
    assert sum(stats.spec_decode_num_accepted_tokens_per_pos.values()) == (
        stats.spec_decode_num_accepted_tokens
    )
    assert stats.spec_decode_num_accepted_tokens_per_pos[0] == stats.spec_decode_num_drafts


def test_stats_have_no_rate_without_drafts(plain: LLM) -> None:
    assert plain.engine.core.stats.spec_decode_acceptance_rate is None


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"speculation": "magic"}, "speculation"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 33}, "num_speculative_tokens"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min"),
        ({"prompt_lookup_max": True}, "prompt_lookup_max"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LLM(str(Path("no model is opened")), **settings)

    assert refused.value.field == f"speculative.{field}"


def test_number_of_drafts_follows_how_many_were_right(folder: str) -> None:
    llm = llm_of(folder, 8)
    sizes: list[int] = []
    runner: Any = llm.engine.core.runner
    execute = runner.execute_model

    def recorded(step: Any) -> Any:
        sizes.extend(map(len, step.draft_token_ids.values()))
        return execute(step)

    runner.execute_model = recorded
    llm.generate("x", params_of({"temperature": 0.0, "logit_bias": {97: 80.0}, "max_tokens": 40}))
    all_right = sizes[:]
    sizes.clear()
    llm.generate(
        "abcdefgh" * 4,
        params_of({"temperature": 3.0, "seed": 1, "allowed_token_ids": range(97, 105)}),
    )

    assert max(all_right) == 8
    assert min(sizes) == 1
    assert sum(sizes) < 4 * len(sizes), "few are right, so few are sent"
