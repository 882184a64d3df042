"""Histograms with fixed bounds.

A private leaf: every package may import it, and it knows nothing of Keyrun.
"""

from bisect import bisect_right

FOLD = 128
"""Values that a histogram keeps before it counts them. Counting many at once takes a quarter of the
time: see `python -m benchmarks metrics`."""


class Histogram:
    """Count values by the smallest bound that they do not exceed."""

    __slots__ = ("_counts", "_sum", "bounds", "kept")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.kept: list[float] = []
        """Values that are not counted yet."""
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        kept = self.kept
        kept.append(value)
        if len(kept) >= FOLD:
            self.fold()

    def fold(self) -> None:
        """Count the values that are kept."""
        values = sorted(self.kept)
        del self.kept[: len(values)]
        self._sum += sum(values)
        below = 0
        for at, bound in enumerate(self.bounds):
            end = bisect_right(values, bound, below)
            self._counts[at] += end - below
            below = end
        self._counts[-1] += len(values) - below

    @property
    def sum(self) -> float:
        """Return the sum of all values."""
        self.fold()
        return self._sum

    def count(self) -> int:
        """Return the number of values."""
        return sum(self._counts) + len(self.kept)

    def cumulative(self) -> list[int]:
        """Return for each bound, and last for all values, how many do not exceed it."""
        self.fold()
        found, total = [], 0
        for count in self._counts:
            total += count
            found.append(total)
        return found
