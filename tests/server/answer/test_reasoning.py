"""Reasoning is split from the answer, wherever the text starts and however it is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvt.server.answer.events import Content, Reasoning
from pyvt.server.answer.reasoning import (
    REASONING_TAGS,
    ReasoningSplitter,
    Start,
    detect_reasoning,
    start_state,
)
from tests.server.splits import cut, every_cut, noisy_texts, parse

TAGS = REASONING_TAGS["think"]

CASES: list[tuple[Start, str, str, str]] = [
    ("open", "\nI think.\n</think>\n\nYes.\n", "I think.", "Yes.\n"),
    ("open", "cut in the mid", "cut in the mid", ""),
    ("open", "</think>\n\nYes.", "", "Yes."),
    ("open", "a </think b\n</think>", "a </think b", ""),
    ("closed", "\n\nYes <think>.", "", "Yes <think>."),
    ("closed", "Yes.", "", "Yes."),
    ("free", "<think>\nI.\n\nThink.\n</think>\n\nYes.", "I.\n\nThink.", "Yes."),
    ("free", "\n<think>x</think>y</think>z", "x", "y</think>z"),
    ("free", "No tags.", "", "No tags."),
    ("free", "\n\nSpace <think>in</think> front", "", "\n\nSpace <think>in</think> front"),
    ("free", "<thin", "", "<thin"),
    ("free", "", "", ""),
]


@pytest.mark.parametrize(("start", "text", "reasoning", "content"), CASES)
def test_text_gives_reasoning_and_content(
    start: Start, text: str, reasoning: str, content: str
) -> None:
    events = parse(ReasoningSplitter(TAGS, start), [text])

    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == reasoning
    assert "".join(e.text for e in events if isinstance(e, Content)) == content


@pytest.mark.parametrize(("start", "text", "reasoning", "content"), CASES)
def test_every_cut_gives_the_same(start: Start, text: str, reasoning: str, content: str) -> None:
    every_cut(lambda: ReasoningSplitter(TAGS, start), text)


@given(
    start=st.sampled_from(["open", "closed", "free"]),
    text=noisy_texts(["<think>", "</think>", "\n\n"]),
    places=st.lists(st.integers(0, 40), max_size=6),
)
def test_any_text_cut_anywhere_gives_the_same(start: Start, text: str, places: list[int]) -> None:
    whole = parse(ReasoningSplitter(TAGS, start), [text])

    assert parse(ReasoningSplitter(TAGS, start), cut(text, places)) == whole


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("<|im_start|>assistant\n<think>\n", "open", id="opened_by_the_template"),
        pytest.param("assistant\n<think>\n\n</think>\n\n", "closed", id="thinking_off"),
        pytest.param("user: <think></think>\nassistant\n", "free", id="nothing_at_the_end"),
    ],
)
def test_start_is_read_from_the_prompt(prompt: str, expected: Start) -> None:
    assert start_state(prompt, TAGS) == expected


def test_tags_are_found_in_the_template() -> None:
    assert detect_reasoning("{{ '</think>' }}") == REASONING_TAGS["think"]
    assert detect_reasoning("{{ '[THINK]' }}") == REASONING_TAGS["mistral"]
    assert detect_reasoning("{{ messages }}") is None
