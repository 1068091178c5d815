"""Judge greedy text against another engine by teacher forcing.

The oracle's tokens are fed to pyvt in one prefill. At each position our argmax is compared with the
oracle's token, so that one flip spoils nothing after it. Where they differ, the *gap* is how much
less the oracle gives our token than its own, in nats.

Dims: n tokens that the oracle generated, V vocabulary.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyvt.errors import CheckpointError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGolden:
    """One prompt: its ids, the oracle's greedy tokens and its best logprobs a position."""

    oracle: str
    prompt_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    top_ids: Array
    top_logprobs: Array

    @property
    def forced_ids(self) -> list[int]:
        """The prompt and all tokens but the last: the input of one prefill that judges them."""
        return [*self.prompt_ids, *self.token_ids[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiePolicy:
    """How many near ties an oracle's arithmetic allows.

    Attributes:
        max_gap: the largest gap of a near tie, in nats; more is a failure.
        max_share: near ties allowed as a share of positions.
        wide_gap: near ties over this are counted as wide.
        max_wide_share: wide near ties allowed as a share of near ties.
    """

    max_gap: float
    max_share: float
    wide_gap: float
    max_wide_share: float


# f32 against f32: only rounding may decide. Quantised activations move logits by tenths of a nat.
SAME_ARITHMETIC = TiePolicy(max_gap=1e-3, max_share=0.05, wide_gap=1e-3, max_wide_share=0.0)
QUANTISED_ACTIVATIONS = TiePolicy(max_gap=1.0, max_share=0.05, wide_gap=0.4, max_wide_share=0.1)
POLICIES = {"transformers": SAME_ARITHMETIC, "llama.cpp": QUANTISED_ACTIVATIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextVerdict:
    """The counts of one or many prompts; ``gaps`` of the positions that differ, in nats."""

    num_positions: int
    gaps: tuple[float, ...]

    def __add__(self, other: "TextVerdict") -> "TextVerdict":
        return TextVerdict(
            num_positions=self.num_positions + other.num_positions, gaps=self.gaps + other.gaps
        )

    def __str__(self) -> str:
        worst = max(self.gaps, default=0.0)
        return f"{len(self.gaps)} of {self.num_positions} positions differ, worst {worst:.2f} nat,"

    def problems(self, policy: TiePolicy) -> list[str]:
        """Return what breaks the policy, in words; empty where nothing does."""
        near = [gap for gap in self.gaps if gap <= policy.max_gap]
        wide = [gap for gap in near if gap > policy.wide_gap]
        found = []
        if len(near) < len(self.gaps):
            found.append(f"{len(self.gaps) - len(near)} positions over {policy.max_gap} nat")
        if len(near) > policy.max_share * self.num_positions:
            found.append(f"{len(near)} near ties of {self.num_positions} positions")
        if len(wide) > policy.max_wide_share * len(near):
            found.append(f"{len(wide)} near ties over {policy.wide_gap} nat")
        return found


NOTHING_JUDGED = TextVerdict(num_positions=0, gaps=())


def judge(golden: TextGolden, logits: Array) -> TextVerdict:
    """Compare our logits ``[n, V]`` at the oracle's positions with its tokens."""
    assert len(logits) == len(golden.token_ids), "one row of logits for each token of the oracle"
    gaps = []
    ours = np.argmax(logits, axis=-1)
    for row in np.flatnonzero(ours != np.asarray(golden.token_ids)):
        known = np.flatnonzero(golden.top_ids[row] == ours[row])
        best = float(golden.top_logprobs[row][0])
        gaps.append(best - float(golden.top_logprobs[row][known[0]]) if known.size else np.inf)
    return TextVerdict(num_positions=len(ours), gaps=tuple(gaps))


def judge_logits(logits: Array, reference: Array) -> TextVerdict:
    """Compare the argmax of our logits ``[n, V]`` with that of another run of the same tokens."""
    ours, theirs = np.argmax(logits, axis=-1), np.argmax(reference, axis=-1)
    rows = np.flatnonzero(ours != theirs)
    # The difference of two logits of a row is that of their logprobs.
    gaps = reference[rows, theirs[rows]] - reference[rows, ours[rows]]
    return TextVerdict(num_positions=len(logits), gaps=tuple(map(float, gaps)))


def read_text_goldens(root: Path, model: str) -> Iterator[TextGolden]:
    """Yield the goldens of a model (the file's stem in lower case), by oracle and prompt.

    Raises CheckpointError where the folder is missing or holds no manifest.
    """
    manifests = sorted((root / "text" / model).glob("*/manifest.json"))
    if not manifests:
        raise CheckpointError(
            f"[golden] folder: expected text goldens of {model!r} below {str(root / 'text')!r}",
            path=root,
        )
    for path in manifests:
        manifest = json.loads(path.read_text())
        for prompt_id in manifest["prompts"]:
            with np.load(path.with_name(f"{prompt_id}.npz")) as stored:
                yield TextGolden(
                    oracle=manifest["oracle"]["name"],
                    prompt_id=prompt_id,
                    prompt_ids=tuple(stored["prompt_ids"].tolist()),
                    token_ids=tuple(stored["token_ids"].tolist()),
                    top_ids=stored["top_ids"],
                    top_logprobs=stored["top_logprobs"],
                )
