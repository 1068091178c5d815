"""The judge of greedy text: agreement, near ties, and what is refused."""

import numpy as np
import pytest

from pyvt.testing.text_parity import (
    QUANTISED_ACTIVATIONS,
    SAME_ARITHMETIC,
    TextGolden,
    TextVerdict,
    judge,
    judge_logits,
)


def _golden() -> TextGolden:
    return TextGolden(
        oracle="transformers",
        prompt_id="p",
        prompt_ids=(7,),
        token_ids=(1, 2),
        top_ids=np.array([[1, 3], [2, 0]], np.int32),
        top_logprobs=np.array([[-0.1, -0.4], [-0.2, -3.0]], np.float32),
    )


def _logits(*winners: int) -> np.ndarray:
    return np.eye(5, dtype=np.float32)[list(winners)]


def test_judge_same_tokens_has_no_gap() -> None:
    assert judge(_golden(), _logits(1, 2)) == TextVerdict(num_positions=2, gaps=())


def test_judge_second_best_gives_its_gap() -> None:
    assert judge(_golden(), _logits(3, 2)).gaps == pytest.approx((0.3,))


def test_judge_token_the_oracle_does_not_list_is_infinite() -> None:
    assert judge(_golden(), _logits(1, 4)).gaps == (np.inf,)


@pytest.mark.parametrize(
    ("gaps", "problem"),
    [
        pytest.param((0.002,), "1 positions over 0.001 nat", id="gap"),
        pytest.param((0.0005,) * 6, "6 near ties of 100 positions", id="share"),
    ],
)
def test_same_arithmetic_refuses(gaps: tuple[float, ...], problem: str) -> None:
    assert TextVerdict(num_positions=100, gaps=gaps).problems(SAME_ARITHMETIC) == [problem]


@pytest.mark.parametrize(
    ("gaps", "problem"),
    [
        pytest.param((1.5,), "1 positions over 1.0 nat", id="gap"),
        pytest.param((0.1,) * 6, "6 near ties of 100 positions", id="share"),
        pytest.param((0.5,), "1 near ties over 0.4 nat", id="wide"),
    ],
)
def test_quantised_activations_refuses(gaps: tuple[float, ...], problem: str) -> None:
    assert TextVerdict(num_positions=100, gaps=gaps).problems(QUANTISED_ACTIVATIONS) == [problem]


def test_near_ties_within_the_policy_are_no_problem() -> None:
    assert TextVerdict(num_positions=100, gaps=(0.1, 0.2)).problems(QUANTISED_ACTIVATIONS) == []


def test_forced_ids_leave_out_the_last_token() -> None:
    assert _golden().forced_ids == [7, 1]


def test_judge_logits_gives_the_gap_by_the_reference() -> None:
    reference = np.array([[1.0, 3.0, 2.5], [4.0, 0.0, 0.0]], np.float32)
    ours = np.array([[1.0, 2.4, 2.5], [4.0, 0.0, 0.0]], np.float32)

    verdict = judge_logits(ours, reference)

    assert verdict == TextVerdict(num_positions=2, gaps=(0.5,))
    assert str(verdict) == "1 of 2 positions differ, worst 0.50 nat,"
