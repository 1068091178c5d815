"""ModelRunner over tiny models: batches, chunks, preemption, and rows that fail alone."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.config import EngineConfig
from pyvt.errors import ConfigError
from pyvt.models.base import CausalLM
from pyvt.tensor.dtype import F64
from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from pyvt.testing.model_runs import all_logits, load_case, write_case
from pyvt.worker.kv_cache import allocate_kv_cache
from pyvt.worker.model_runner import ModelRunner
from tests.worker.steps import generate, new_request, runner_of, step

SHORT = [5, 11, 7]
LONG = [3, 90, 41, 8, 8, 15, 60, 2, 33, 71, 29]
NAN_TOKEN = 77
# Requests of the model with windows: each of its three layers is a cache group.
windowed = partial(new_request, num_groups=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A model with windows in two of three layers; in f64, so that no batch decides a near tie."""
    case = MODEL_CASES_BY_NAME["qwen3_layer_types"]
    return load_case(write_case(case, tmp_path_factory.mktemp("model")), dtype=F64).model


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A model with a NaN in one row of its embedding."""
    case = MODEL_CASES_BY_NAME["llama"]
    weights = case.weights()
    weights["model.embed_tokens.weight"][NAN_TOKEN, 3] = np.nan
    folder = tmp_path_factory.mktemp("damaged")
    return load_case(write_safetensors(folder, weights, case.config)).model


def test_greedy_tokens_are_the_argmax_of_the_whole_sequence(model: CausalLM) -> None:
    tokens = generate(runner_of(model), [windowed("a", LONG)], 12)["a"]

    ids = np.array(LONG + tokens)
    (logits,) = all_logits(model, [(ids, np.arange(len(ids)))])
    assert tokens == logits.argmax(axis=1)[len(LONG) - 1 : -1].tolist()


def test_tokens_do_not_depend_on_the_batch(model: CausalLM) -> None:
    requests = [
        windowed("a", LONG, slot=0),
        windowed("b", SHORT, slot=1, temperature=0.9, seed=7),
        windowed("c", SHORT, slot=2, temperature=0.9, seed=8),
        windowed("d", LONG[::-1], slot=3, temperature=1.2, top_k=9, top_p=0.9, seed=7),
    ]
    alone = {r.request_id: generate(runner_of(model), [r], 8)[r.request_id] for r in requests}

    together = generate(runner_of(model), requests, 8)

    assert together == alone
    assert together["b"] != together["c"]


def test_chunked_prefill_samples_only_after_the_last_chunk(model: CausalLM) -> None:
    want = generate(runner_of(model), [windowed("a", LONG)], 1)["a"]
    runner = runner_of(model)

    first = runner.execute_model(step({"a": 4}, new=[windowed("a", LONG)]))
    second = runner.execute_model(step({"a": 7}, computed={"a": 4}))

    assert first.sampled_token_ids == {}
    assert second.sampled_token_ids == {"a": tuple(want)}


def test_prefill_and_decode_share_a_step(model: CausalLM) -> None:
    want = generate(runner_of(model), [windowed("a", SHORT)], 2)["a"]
    runner = runner_of(model)
    runner.execute_model(step({"a": 3}, new=[windowed("a", SHORT)]))

    output = runner.execute_model(
        step({"b": 5, "a": 1}, new=[windowed("b", LONG, slot=1)], computed={"a": 3})
    )

    assert output.sampled_token_ids == {"a": (want[1],)}


def test_preempted_request_goes_on_as_if_it_had_not_been(model: CausalLM) -> None:
    request = windowed("a", LONG, temperature=0.8, seed=3, frequency_penalty=0.5)
    want = generate(runner_of(model), [request], 8)["a"]
    runner = runner_of(model)
    generate(runner, [request], 3)
    resumed = windowed(
        "a", LONG, slot=1, output=want[:3], temperature=0.8, seed=3, frequency_penalty=0.5
    )

    first = runner.execute_model(step({"a": len(LONG) + 3}, new=[resumed], finished=["a"]))

    assert first.sampled_token_ids == {"a": (want[3],)}


def test_row_that_is_not_finite_fails_alone(damaged: CausalLM) -> None:
    good = new_request("good", LONG, slot=1)
    want = generate(runner_of(damaged), [good], 1)["good"]
    runner = runner_of(damaged)

    output = runner.execute_model(
        step({"bad": 3, "good": 11}, new=[new_request("bad", [5, NAN_TOKEN, 7]), good])
    )

    assert output.sampled_token_ids == {"good": tuple(want)}
    assert list(output.errors) == ["bad"]
    assert "finite" in output.errors["bad"]


def test_blocks_that_held_nan_serve_the_next_request(damaged: CausalLM) -> None:
    want = generate(runner_of(damaged), [new_request("b", LONG)], 4)["b"]
    runner = runner_of(damaged)
    runner.execute_model(step({"a": 7}, new=[new_request("a", [NAN_TOKEN] * 7)]))
    runner.execute_model(step({}, finished=["a"]))

    assert generate(runner, [new_request("b", LONG)], 4)["b"] == want


def test_step_without_tokens_forgets_requests_and_returns_nothing(model: CausalLM) -> None:
    runner = runner_of(model)
    runner.execute_model(step({"a": 3}, new=[windowed("a", SHORT)]))

    output = runner.execute_model(step({}, finished=["a", "never-seen"]))

    assert output.sampled_token_ids == {}
    assert len(runner.rows) == 0


def test_logprobs_are_of_the_raw_logits(model: CausalLM) -> None:
    (logits,) = all_logits(model, [(np.array(LONG), np.arange(len(LONG)))])
    last = logits[-1].astype(np.float64)
    want = last - np.log(np.exp(last).sum())
    best = int(last.argmax())
    request = windowed("a", LONG, logprobs=3, logit_bias={best: -100.0})

    output = runner_of(model).execute_model(step({"a": len(LONG)}, new=[request]))

    (entry,) = output.logprobs["a"]
    order = np.argsort(-want)[:3]
    assert [i for i, _ in entry.top] == order.tolist()
    assert (entry.token_id, entry.rank) == (int(order[1]), 2)
    np.testing.assert_allclose([v for _, v in entry.top], want[order], atol=1e-5)
    assert entry.logprob == pytest.approx(want[order[1]], abs=1e-5)


def test_runner_refuses_an_unresolved_config(model: CausalLM) -> None:
    cache = allocate_kv_cache(model.kv_cache_specs(), 4, 4)
    config: Any = EngineConfig(model="tiny")

    with pytest.raises(ConfigError, match="max_model_len"):
        ModelRunner(model, cache, config)


def test_real_model_answers_a_chat_prompt(smollm2_path: Path) -> None:
    """The demo model with expanded weights on the ids of one question."""
    loaded = load_case(smollm2_path)
    prompt = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]

    tokens = generate(runner_of(loaded.model), [new_request("a", prompt)], 8)["a"]

    assert tokens == [504, 3575, 282, 4649, 314, 7042, 30, 2]


@pytest.mark.parametrize("chunks", [(11,), (4, 7), (1, 9, 1), (3, 3, 3, 2)])
def test_prompt_logprobs_are_those_of_the_whole_sequence_however_it_is_cut(
    model: CausalLM, chunks: tuple[int, ...]
) -> None:
    runner = runner_of(model)
    request = windowed("a", LONG, prompt_logprobs=2)

    output = runner.execute_model(step({"a": chunks[0]}, new=[request]))
    computed = chunks[0]
    for chunk in chunks[1:]:
        assert output.prompt_logprobs == {}
        output = runner.execute_model(step({"a": chunk}, computed={"a": computed}))
        computed += chunk

    (logits,) = all_logits(model, [(np.array(LONG), np.arange(len(LONG)))])
    want = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    entries = output.prompt_logprobs["a"]
    assert [entry.token_id for entry in entries] == LONG[1:]
    assert [entry.logprob for entry in entries] == pytest.approx(
        want[np.arange(len(LONG) - 1), LONG[1:]], abs=1e-9
    )
    assert [[i for i, _ in entry.top] for entry in entries] == [
        np.argsort(-row)[:2].tolist() for row in want[:-1]
    ]


def test_prompt_logprobs_come_once(model: CausalLM) -> None:
    runner = runner_of(model)
    runner.execute_model(step({"a": 3}, new=[windowed("a", SHORT, prompt_logprobs=0)]))
    later = runner.execute_model(step({"a": 1}, computed={"a": 3}))
    again = windowed("a", SHORT, prompt_logprobs=0, output=[1, 2])

    resumed = runner.execute_model(step({"a": 5}, new=[again], finished=["a"]))

    assert (later.prompt_logprobs, resumed.prompt_logprobs) == ({}, {})


@pytest.mark.parametrize(
    ("params", "sizes"),
    [
        pytest.param({}, [1], id="only-the-last-row"),
        pytest.param({"prompt_logprobs": 1}, [4, 4, 2, 1], id="a-few-rows-at-a-time"),
    ],
)
def test_logits_of_a_prompt_are_made_for_few_rows_at_once(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch, params: dict[str, int], sizes: list[int]
) -> None:
    made = []
    compute = model.compute_logits

    def recorded(hidden: Any) -> Any:
        made.append(len(hidden))
        return compute(hidden)

    monkeypatch.setattr(model, "compute_logits", recorded, raising=False)
    monkeypatch.setattr("pyvt.worker.logprobs.PROMPT_ROWS", 4)
    runner_of(model).execute_model(step({"a": 11}, new=[windowed("a", LONG, **params)]))

    assert made == sizes


def test_prompt_logprobs_of_a_damaged_prompt_are_an_error_of_that_request(
    damaged: CausalLM,
) -> None:
    bad = new_request("bad", [NAN_TOKEN, *SHORT], slot=0, prompt_logprobs=1)
    good = new_request("good", SHORT, slot=1, prompt_logprobs=1)

    output = runner_of(damaged).execute_model(step({"bad": 4, "good": 3}, new=[bad, good]))

    assert list(output.errors) == ["bad"]
    assert list(output.prompt_logprobs) == ["good"]
