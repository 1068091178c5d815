"""Who drafts tokens: proposers, from a request's tokens to what may follow.

Drafts of a model's own head are not made from tokens but from hidden states: ``worker.drafter``.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from pyvt.config import SpeculativeConfig
from pyvt.spec_decode.ngram import NgramProposer

__all__ = ["PROPOSERS", "Proposer", "make_proposer"]


class Proposer(Protocol):
    """Drafts tokens of one request; the worker calls it after each token that it samples."""

    def propose(
        self, token_ids: np.ndarray[tuple[int], np.dtype[np.int64]], most: int
    ) -> tuple[int, ...]:
        """Return at most ``most`` tokens that may follow ``token_ids`` ``[n]``; often none."""
        ...


PROPOSERS: Mapping[str, Callable[[SpeculativeConfig], Proposer]] = {
    "ngram": NgramProposer.from_config
}


def make_proposer(config: SpeculativeConfig) -> Proposer | None:
    """Return the proposer that the settings ask for, None where none drafts from tokens."""
    make = None if config.speculation is None else PROPOSERS.get(config.speculation)
    return None if make is None else make(config)
