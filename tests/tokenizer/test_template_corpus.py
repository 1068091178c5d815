"""The chat templates of 70 public models render as in transformers.

The templates are a fixture of the long tests. Their golden holds a hash of each text, or the kind
of error that transformers ends in.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyvt.errors import RequestError
from pyvt.testing.chats import CONVERSATIONS, SPECIALS, StoppedClock
from pyvt.tokenizer import ChatTemplate, sandbox
from tests.fixtures import CHAT_TEMPLATES, TABLE

MIN_TEMPLATES, MIN_CONVERSATIONS, MIN_TEXTS = 70, 13, 851

# What stands for the control tokens of a template's model: everything that looks like one.
NOTHING = re.compile("(?!)")
TAGS = re.compile(r"<[|｜/]?[\w|｜/▁:.=-]+>|\[/?[A-Z_]{3,}\]")

# Reasoning at the start of a reply goes to ``reasoning_content`` without the blank lines around its
# tags (decision 50). Most templates trim both parts again; these two do not.
KNOWN_DIFFERENCES = {
    ("MiniMax-M2", "reasoning_last"): (
        "trims an answer only if it cut the answer out of the content itself: ours keeps the line "
        "end after the answer"
    ),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "reasoning_in_content"): (
        "leaves out past reasoning, but keeps the blank lines after </think>: ours has one line end"
    ),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "reasoning_last"): (
        "prints a content with both tags as it is: ours has single line ends around the tags"
    ),
}


@pytest.fixture(scope="module")
def golden(goldens_root: Path) -> dict[str, Any]:
    return dict(json.loads((goldens_root / "tokenizer" / "corpus.json").read_text()))


@pytest.fixture(scope="module")
def corpus(chat_templates_path: Path) -> dict[str, str]:
    return dict(json.loads(chat_templates_path.read_text()))


def outcomes(source: str, control_texts: Iterable[str]) -> dict[str, str]:
    """Return conversation → what the golden holds of it."""
    template = ChatTemplate({"default": source}, SPECIALS, control_texts=control_texts)
    found = {}
    for name, chat in CONVERSATIONS.items():
        try:
            text = template.render(**chat).text
        except RequestError as error:
            found[name] = f"raises {type(error.__cause__).__name__}"
        else:
            found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("control", [NOTHING, TAGS], ids=["unguarded", "guarded"])
def test_corpus_renders_as_in_transformers(
    control: re.Pattern[str],
    corpus: dict[str, str],
    golden: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "datetime", StoppedClock)

    different = {
        (name, conversation)
        for name, source in corpus.items()
        for conversation, outcome in outcomes(source, control.findall(source)).items()
        if outcome != golden["templates"][name][conversation]
    }

    assert different == set(KNOWN_DIFFERENCES)


def test_golden_is_of_the_fixture_s_templates(golden: dict[str, Any]) -> None:
    assert golden["source_sha256"] == TABLE["chat-templates"].files[CHAT_TEMPLATES]


def test_golden_covers_every_conversation_of_seventy_templates(golden: dict[str, Any]) -> None:
    templates = golden["templates"].values()
    texts = [t for cases in templates for t in cases.values() if not t.startswith("raises ")]

    assert len(templates) >= MIN_TEMPLATES
    assert len(CONVERSATIONS) >= MIN_CONVERSATIONS
    assert all(cases.keys() == CONVERSATIONS.keys() for cases in templates)
    assert len(texts) >= MIN_TEXTS
