"""Histograms with fixed bounds.

A private leaf: every package may import it, and it knows nothing of Keyrun.
"""

from bisect import bisect_left


class Histogram:
    """Count values by the smallest bound that they do not exceed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The number of values for each bound, and last of those above all bounds."""
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Return for each bound, and last for all values, how many do not exceed it."""
        found, total = [], 0
        for count in self.counts:
            total += count
            found.append(total)
        return found
