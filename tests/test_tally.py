"""Tally: values by their bound."""

from pyvt.tally import Tally


def test_tally_counts_by_upper_bound_and_sums() -> None:
    tally = Tally((1, 8))
    for value in (1, 2, 9):
        tally.add(value)
    tally.add(0.5, 4)
    other = Tally((1, 8))
    other.add(8)

    tally.add_all(other)

    assert list(tally.buckets()) == [("1", 5), ("8", 7), ("+Inf", 8)]
    assert tally.sum == 1 + 2 + 9 + 2 + 8
