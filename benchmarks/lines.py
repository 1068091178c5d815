"""A line of the tables that the drivers print, and what it is held to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A figure.

    Attributes:
        name: what was measured.
        value: the figure, in ``unit``.
        limit: the most that it may be, None where nothing was promised.
        least: the least that it may be.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    least: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the figure is what was promised; true where nothing was."""
        is_low = self.limit is None or self.value <= self.limit
        return is_low and (self.least is None or self.value >= self.least)

    def text(self) -> str:
        """Return the line: name, figure, unit, promise."""
        promises = [
            f"{word} {bound:g}"
            for word, bound in (("at most", self.limit), ("at least", self.least))
            if bound is not None
        ]
        promises += [] if self.is_met else ["MISSED"]
        row = f"{self.name:<64} {self.value:>12,.2f} {self.unit:<12} {' '.join(promises)}"
        return row.rstrip()
