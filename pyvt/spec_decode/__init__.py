"""Who drafts tokens: proposers, from a request's tokens to what may follow."""

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
    """Return the proposer that the settings ask for, None where speculation is off."""
    return None if config.method is None else PROPOSERS[config.method](config)
