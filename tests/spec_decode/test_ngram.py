"""Prompt lookup: which earlier place counts, and how much of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvt.spec_decode.ngram import NgramProposer


@pytest.mark.parametrize(
    ("ids", "most", "want"),
    [
        pytest.param([1, 2, 3, 9, 1, 2], 3, (3, 9, 1), id="what-followed"),
        pytest.param([1, 2, 3, 9, 1, 2], 1, (3,), id="no-more-than-asked"),
        pytest.param([1, 2, 3, 1, 2, 4, 7, 1, 2], 2, (4, 7), id="the-latest-place"),
        pytest.param([5, 1, 2, 3, 1, 2, 4, 5, 1, 2], 2, (3, 1), id="the-longest-match-first"),
        pytest.param([1, 2, 3, 8, 1, 2, 1, 2], 3, (3, 8, 1), id="the-latest-with-enough-behind"),
        pytest.param([7, 7, 7, 7], 3, (7,), id="a-run-gives-what-there-is"),
        pytest.param([1, 2, 3, 4], 3, (), id="nothing-occurred-before"),
        pytest.param([2, 3, 1, 2], 3, (), id="too-short-a-match"),
        pytest.param([1], 3, (), id="one-token"),
        pytest.param([1, 2, 1, 2], 0, (), id="none-asked"),
    ],
)
def test_ngram_proposes(ids: list[int], most: int, want: tuple[int, ...]) -> None:
    assert NgramProposer(2, 3).propose(np.array(ids), most) == want


def test_ngram_of_one_token_is_allowed() -> None:
    assert NgramProposer(1, 1).propose(np.array([2, 3, 1, 2]), 2) == (3, 1)


@given(
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    shortest=st.integers(1, 3),
    more=st.integers(0, 2),
    most=st.integers(1, 5),
)
def test_ngram_follows_the_longest_earlier_match(
    ids: list[int], shortest: int, more: int, most: int
) -> None:
    """Against the definition, place by place."""
    lengths = range(shortest + more, shortest - 1, -1)
    places = [
        [e for e in range(n, len(ids)) if ids[e - n : e] == ids[len(ids) - n :]] for n in lengths
    ]
    best = next((found for found in places if found), [])
    enough = [place for place in best if place + most <= len(ids)]
    start = enough[-1] if enough else best[0] if best else len(ids)

    drafts = NgramProposer(shortest, shortest + more).propose(np.array(ids), most)

    assert list(drafts) == ids[start : start + most]
