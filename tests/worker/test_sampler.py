"""Sampling of rows with different settings."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.worker.input_batch import InputBatch, LogitsRow
from pyvt.worker.logits_rows import process
from pyvt.worker.sampler import Sampled, start_sampling
from tests.worker.steps import new_request

VOCAB_SIZE = 20
PROMPT = [3, 4, 4]


def _logits(num_rows: int = 1) -> Any:
    """Return rows whose tokens from 0 on are ever less likely."""
    row = np.linspace(4, -4, VOCAB_SIZE, dtype=np.float32)
    return np.repeat(row[None], num_rows, axis=0)


def _tokens(result: Sampled) -> dict[str, int]:
    """Return the one token of each request."""
    return {name: token_id for name, (token_id,) in result.token_ids.items()}


def _sample(
    logits: Any, *settings: dict[str, Any], is_processed: bool = False, unused: Any = ()
) -> Sampled:
    rows = InputBatch(
        max_num_seqs=8, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE, unused_ids=unused
    )
    for i, setting in enumerate(settings):
        rows.add(new_request(str(i), setting.pop("prompt", PROMPT), **setting))
    wanted = [LogitsRow(rows[str(i)]) for i in range(len(settings))]
    return start_sampling(logits, wanted, rows, is_processed=is_processed).finish()


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
        pytest.param({"bad_words": [[0]]}, 1, id="bad-word-of-one-token"),
        pytest.param({"bad_words": [[7, 0]], "output": [7]}, 1, id="bad-word-of-two"),
        pytest.param({"bad_words": [[7, 0]], "output": [7, 8]}, 0, id="bad-word-not-begun"),
        pytest.param({"bad_words": [[7, 8, 0], [1]], "output": [7, 8]}, 2, id="bad-words"),
        pytest.param({"bad_words": [[4, 0]]}, 0, id="bad-word-begun-in-the-prompt"),
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
    assert _tokens(_sample(_logits(), setting)) == {"0": token}


def test_rows_keep_their_own_settings() -> None:
    result = _sample(
        _logits(4),
        {"banned_token_ids": [0]},
        {},
        {"logit_bias": {8: 60.0}},
        {"presence_penalty": 2.0, "output": [0]},
    )

    assert _tokens(result) == {"0": 1, "1": 0, "2": 8, "3": 1}


def test_raw_logits_are_not_changed() -> None:
    logits = _logits(2)

    _sample(logits, {"banned_token_ids": [0]}, {"temperature": 0.5, "repetition_penalty": 2.0})

    np.testing.assert_array_equal(logits, _logits(2))


def test_draw_depends_on_seed_and_position_alone() -> None:
    setting = {"temperature": 3.0, "seed": 11}
    alone = _tokens(_sample(_logits(), dict(setting)))["0"]
    later = _tokens(_sample(_logits(), setting | {"prompt": [*PROMPT, 1, 1, 1]}))["0"]

    mixed = _sample(
        _logits(3), {"temperature": 0.0}, {"temperature": 3.0, "seed": 12}, dict(setting)
    )

    assert _tokens(mixed)["2"] == alone
    assert _tokens(mixed)["0"] == 0
    assert later != alone


def test_draws_follow_the_temperature() -> None:
    seeds = range(400)
    rows = InputBatch(max_num_seqs=400, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE)
    for seed in seeds:
        rows.add(new_request(str(seed), PROMPT, temperature=2.0, seed=seed))

    wanted = [LogitsRow(rows[str(seed)]) for seed in seeds]
    result = start_sampling(_logits(400), wanted, rows).finish()

    counts = np.bincount(list(_tokens(result).values()), minlength=VOCAB_SIZE)
    wanted = np.exp(ops.log_softmax(_logits() / np.float32(2)))[0] * 400
    assert np.sum((counts - wanted) ** 2 / wanted) < 43.8, "chi-square, 19 degrees, p = 0.001"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_row_that_is_not_finite_is_an_error_and_others_are_sampled(value: float) -> None:
    logits = _logits(3)
    logits[1, 4] = value

    result = _sample(logits, {}, {}, {"banned_token_ids": [0], "logprobs": 1})

    assert _tokens(result) == {"0": 0, "2": 1}
    assert list(result.errors) == ["1"]
    assert "1 of 20" in result.errors["1"]
    assert list(result.logprobs) == ["2"]


def test_all_rows_not_finite_gives_only_errors() -> None:
    result = _sample(np.full((1, VOCAB_SIZE), np.nan, np.float32), {"logprobs": 1})

    assert (_tokens(result), list(result.errors)) == ({}, ["0"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_an_allowed_token_is_an_error(temperature: float) -> None:
    setting = {"allowed_token_ids": [3], "banned_token_ids": [3], "temperature": temperature}

    result = _sample(_logits(2), setting, {})

    assert _tokens(result) == {"1": 0}
    assert "allowed" in result.errors["0"]


def test_logprobs_have_the_number_asked_for() -> None:
    result = _sample(_logits(3), {"logprobs": 0}, {}, {"logprobs": 20})

    assert [len(result.logprobs[i][0].top) for i in ("0", "2")] == [0, 20]
    assert "1" not in result.logprobs
    assert (result.logprobs["0"][0].rank, result.logprobs["0"][0].token_id) == (1, 0)


SETTINGS_THAT_DO_NOT_MATTER = [
    {},
    {"temperature": 0.7, "top_p": 0.1},
    {"temperature": 2.0, "repetition_penalty": 2.0, "presence_penalty": 1.0},
    {"banned_token_ids": [0, 1]},
]


@pytest.mark.parametrize("num_top", [1, 5, 20])
def test_raw_logprobs_are_the_log_softmax_whatever_the_settings(num_top: int) -> None:
    logits = np.random.default_rng(3).normal(size=(8, VOCAB_SIZE)).astype(np.float32)
    settings = [s | {"logprobs": num_top} for s in SETTINGS_THAT_DO_NOT_MATTER * 2]

    result = _sample(logits, *settings)

    for i, row in enumerate(logits.astype(np.float64)):
        want = row - np.log(np.exp(row).sum())
        (entry,) = result.logprobs[str(i)]
        assert entry.logprob == pytest.approx(want[entry.token_id], abs=1e-4)
        assert [token_id for token_id, _ in entry.top] == np.argsort(-want)[:num_top].tolist()
        assert [v for _, v in entry.top] == pytest.approx(np.sort(want)[::-1][:num_top], abs=1e-4)


def test_processed_logprobs_are_of_the_logits_that_were_sampled_from() -> None:
    greedy = {"banned_token_ids": [0], "logprobs": 3}
    drawn = {"temperature": 2.0, "top_k": 2, "logprobs": 3}

    result = _sample(_logits(2), greedy, drawn, is_processed=True)

    row = np.linspace(4, -4, VOCAB_SIZE)
    banned = row[1:] - np.log(np.exp(row[1:]).sum())
    best_two = row[:2] / 2 - np.log(np.exp(row[:2] / 2).sum())
    assert [i for i, _ in result.logprobs["0"][0].top] == [1, 2, 3]
    assert [v for _, v in result.logprobs["0"][0].top] == pytest.approx(banned[:3], abs=1e-5)
    assert [v for _, v in result.logprobs["1"][0].top] == pytest.approx(best_two, abs=1e-5)


@pytest.mark.parametrize("is_processed", [False, True])
def test_ids_that_stand_for_no_token_are_never_sampled(is_processed: bool) -> None:
    settings = (
        {},
        {"logprobs": 2},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6, "logprobs": 2},
        {"logit_bias": {0: 50.0}},
        {"temperature": 1.0, "top_k": 1, "logit_bias": {1: 50.0}},
        {"allowed_token_ids": [0, 1, 7]},
    )

    result = _sample(
        _logits(len(settings)), *settings, is_processed=is_processed, unused=[0, 1, 19]
    )

    assert list(_tokens(result).values()) == [2, 2, 2, 2, 2, 2, 7]
    ranks = [entry.rank for (entry,) in result.logprobs.values()]
    assert ranks == ([1, 1] if is_processed else [3, 3])


@pytest.mark.parametrize("ties", [[5, 9], [0, 19], [3, 4, 5]])
def test_greedy_and_top_k_one_take_the_lowest_of_equal_tokens(ties: list[int]) -> None:
    logits = np.zeros((2, VOCAB_SIZE), np.float32)
    logits[:, ties] = 2.5

    result = _sample(logits, {}, {"temperature": 0.9, "top_k": 1})

    assert _tokens(result) == {"0": ties[0], "1": ties[0]}


def test_drafts_ahead_of_a_row_count_as_generated() -> None:
    rows = InputBatch(max_num_seqs=2, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE)
    rows.add(
        new_request("p", PROMPT, presence_penalty=2.0, bad_words=[[1, 2]], min_tokens=2, eos=[3])
    )
    request = rows["p"]
    wanted = [
        LogitsRow(request),
        LogitsRow(request, (0,)),
        LogitsRow(request, (0, 1)),
        LogitsRow(request, (0, 1, 4)),
    ]
    bias = np.array([9, 8.5, 8.4, 8.3], np.float32)
    logits = _logits(4)
    logits[:, :4] = bias

    processed = process(logits, wanted, rows)

    assert processed.argmax(axis=1).tolist() == [0, 1, 3, 2]
    assert processed[:, 3].tolist() == [-np.inf, -np.inf, bias[3], bias[3]]
    assert processed[:, 2].tolist() == [bias[2], bias[2], -np.inf, bias[2]]


@pytest.mark.parametrize(("bad", "given", "has_failed"), [(0, (), True), (1, (5,), False),
                                                          (2, (5, 6), False)])  # fmt: skip
def test_drafts_that_were_right_before_a_bad_row_are_given_out(
    bad: int, given: tuple[int, ...], has_failed: bool
) -> None:
    """They were dropped with the request, which without speculation had got them."""
    rows = InputBatch(max_num_seqs=2, max_model_len=64, block_size=4, vocab_size=VOCAB_SIZE)
    rows.add(new_request("p", PROMPT, logprobs=0))
    wanted = [LogitsRow(rows["p"], (5, 6)[:i]) for i in range(3)]
    logits = np.zeros((3, VOCAB_SIZE), np.float32)
    logits[[0, 1, 2], [5, 6, 7]] = 1
    logits[bad, 3] = np.nan

    result = start_sampling(logits, wanted, rows).finish()

    assert result.token_ids.get("p", ()) == given
    assert ("p" in result.errors) is has_failed
    assert [entry.token_id for entry in result.logprobs.get("p", ())] == list(given)
