"""Prompt lookup: the last tokens of a text occurred before, so what followed may follow again."""

from dataclasses import dataclass

import numpy as np

from pyvt.config import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class NgramProposer:
    """Looks for the last ``longest`` tokens, then for fewer, down to ``shortest``.

    Of several places the latest with enough tokens behind it counts, else the one with the most.

    Source: Saxena 2023, "Prompt lookup decoding"; vLLM ``NgramProposer``.
    """

    shortest: int
    longest: int

    @classmethod
    def from_config(cls, config: SpeculativeConfig) -> "NgramProposer":
        """Return the proposer of the settings."""
        return cls(config.prompt_lookup_min, config.prompt_lookup_max)

    def propose(
        self, token_ids: np.ndarray[tuple[int], np.dtype[np.int64]], most: int
    ) -> tuple[int, ...]:
        """Return at most ``most`` tokens that followed the end of ``token_ids`` ``[n]`` before."""
        num_tokens = len(token_ids)
        if most < 1:
            return ()
        # Places whose token is the last one, each the possible end of an earlier occurrence.
        ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])
        length = 1
        found = ends if self.shortest == 1 else ends[:0]
        while ends.size and length < self.longest:
            ends = ends[ends >= length]
            ends = ends[token_ids[ends - length] == token_ids[num_tokens - 1 - length]]
            length += 1
            if ends.size and length >= self.shortest:
                found = ends
        if not found.size:
            return ()
        enough = found[found + 1 + most <= num_tokens]
        start = int(enough[-1] if enough.size else found[0]) + 1
        return tuple(token_ids[start : start + most].tolist())
