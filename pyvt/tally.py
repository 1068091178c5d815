"""Tally: a histogram of plain counts, for what is counted at every step or token."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

# CPUs take minutes for a long prompt.
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


class Tally:
    """Counts of values by upper bound, and their sum; threads that add together may lose one.

    Attributes:
        bounds: ascending; a value counts at the first bound that it is not above.
        counts: one for each bound, and one for what is above all of them.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or several of the same."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def add_all(self, other: "Tally") -> None:
        """Add what another one of the same bounds has counted."""
        assert self.bounds == other.bounds, "values were sorted by the same bounds"
        self.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.sum += other.sum

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Yield each bound as text with the values that are not above it; the last is ``+Inf``."""
        names = (*map(str, self.bounds), "+Inf")
        return zip(names, accumulate(self.counts), strict=True)
