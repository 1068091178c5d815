"""Sampling of rows with different settings."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.worker.input_batch import InputBatch
from pyvt.worker.sampler import Sampled, sample
from tests.worker.steps import new_request

VOCAB_SIZE = 20
PROMPT = [3, 4, 4]


def _logits(num_rows: int = 1) -> Any:
    """Return rows whose tokens from 0 on are ever less likely."""
    row = np.linspace(4, -4, VOCAB_SIZE, dtype=np.float32)
    return np.repeat(row[None], num_rows, axis=0)


def _sample(logits: Any, *settings: dict[str, Any]) -> Sampled:
    rows = InputBatch(max_num_seqs=8, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE)
    for i, setting in enumerate(settings):
        rows.add(new_request(str(i), setting.pop("prompt", PROMPT), **setting))
    return sample(logits, [rows[str(i)] for i in range(len(settings))], rows)


@pytest.mark.parametrize(
    ("setting", "token"),
    [
        pytest.param({}, 0, id="greedy"),
        pytest.param({"banned_token_ids": [0, 1]}, 2, id="banned"),
        pytest.param({"allowed_token_ids": [9, 7]}, 7, id="allowed"),
        pytest.param({"allowed_token_ids": [7, 9], "banned_token_ids": [7]}, 9, id="both"),
        pytest.param({"logit_bias": {5: 50.0, 6: 51.0}}, 6, id="bias"),
        pytest.param({"min_tokens": 1, "eos": [0], "stop_token_ids": [1]}, 2, id="min-tokens"),
        pytest.param({"min_tokens": 1, "eos": [0], "output": [9]}, 0, id="min-tokens-reached"),
        pytest.param({"presence_penalty": 2.0, "output": [0]}, 1, id="presence"),
        pytest.param({"frequency_penalty": 0.3, "output": [0, 0, 0]}, 1, id="frequency"),
        pytest.param({"repetition_penalty": 3.0, "prompt": [0, 1]}, 2, id="repetition"),
        pytest.param({"temperature": 0.7, "top_k": 1}, 0, id="top-k-one"),
        pytest.param({"temperature": 0.7, "top_p": 1e-6}, 0, id="top-p-tiny"),
        pytest.param({"temperature": 0.7, "min_p": 1.0}, 0, id="min-p-one"),
        pytest.param({"temperature": 0.7, "top_k": -1, "min_p": 1.0}, 0, id="top-k-off"),
        pytest.param({"temperature": 0.7, "top_k": 10**12, "min_p": 1.0}, 0, id="top-k-huge"),
    ],
)
def test_setting_decides_the_token(setting: dict[str, Any], token: int) -> None:
    assert _sample(_logits(), setting).token_ids == {"0": token}


def test_rows_keep_their_own_settings() -> None:
    result = _sample(
        _logits(4),
        {"banned_token_ids": [0]},
        {},
        {"logit_bias": {8: 60.0}},
        {"presence_penalty": 2.0, "output": [0]},
    )

    assert result.token_ids == {"0": 1, "1": 0, "2": 8, "3": 1}


def test_raw_logits_are_not_changed() -> None:
    logits = _logits(2)

    _sample(logits, {"banned_token_ids": [0]}, {"temperature": 0.5, "repetition_penalty": 2.0})

    np.testing.assert_array_equal(logits, _logits(2))


def test_draw_depends_on_seed_and_position_alone() -> None:
    setting = {"temperature": 3.0, "seed": 11}
    alone = _sample(_logits(), dict(setting)).token_ids["0"]
    later = _sample(_logits(), setting | {"prompt": [*PROMPT, 1, 1, 1]}).token_ids["0"]

    mixed = _sample(
        _logits(3), {"temperature": 0.0}, {"temperature": 3.0, "seed": 12}, dict(setting)
    )

    assert mixed.token_ids["2"] == alone
    assert mixed.token_ids["0"] == 0
    assert later != alone


def test_draws_follow_the_temperature() -> None:
    seeds = range(400)
    rows = InputBatch(max_num_seqs=400, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE)
    for seed in seeds:
        rows.add(new_request(str(seed), PROMPT, temperature=2.0, seed=seed))

    result = sample(_logits(400), [rows[str(seed)] for seed in seeds], rows)

    counts = np.bincount(list(result.token_ids.values()), minlength=VOCAB_SIZE)
    wanted = np.exp(ops.log_softmax(_logits() / np.float32(2)))[0] * 400
    assert np.sum((counts - wanted) ** 2 / wanted) < 43.8, "chi-square, 19 degrees, p = 0.001"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_is_an_error_and_others_are_sampled(value: float) -> None:
    logits = _logits(3)
    logits[1, 4] = value

    result = _sample(logits, {}, {}, {"banned_token_ids": [0], "logprobs": 1})

    assert result.token_ids == {"0": 0, "2": 1}
    assert list(result.errors) == ["1"]
    assert "1 of 20" in result.errors["1"]
    assert list(result.logprobs) == ["2"]


def test_all_rows_not_finite_gives_only_errors() -> None:
    result = _sample(np.full((1, VOCAB_SIZE), np.nan, np.float32), {"logprobs": 1})

    assert (result.token_ids, list(result.errors)) == ({}, ["0"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_an_allowed_token_is_an_error(temperature: float) -> None:
    setting = {"allowed_token_ids": [3], "banned_token_ids": [3], "temperature": temperature}

    result = _sample(_logits(2), setting, {})

    assert result.token_ids == {"1": 0}
    assert "allowed" in result.errors["0"]


def test_logprobs_have_the_number_asked_for() -> None:
    result = _sample(_logits(3), {"logprobs": 0}, {}, {"logprobs": 20})

    assert [len(result.logprobs[i].top) for i in ("0", "2")] == [0, 20]
    assert "1" not in result.logprobs
    assert (result.logprobs["0"].rank, result.logprobs["0"].token_id) == (1, 0)
