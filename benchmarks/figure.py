"""A figure: what was measured over several rounds, as a ratio to a limit of the same rounds."""

from statistics import median
from typing import Literal

import attrs

Better = Literal["higher", "lower"]


def spread(samples: list[float]) -> float:
    """How far the middle half of the samples lies apart, relative to their median."""
    middle = median(samples)
    if len(samples) < 2 or not middle:
        return 0.0
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return abs(ordered[-1 - quarter] - ordered[quarter]) / abs(middle)


@attrs.frozen(kw_only=True)
class Bar:
    """What a figure must reach: its ratio to the limit, or with `absolute` its own value."""

    value: float
    better: Better = "higher"
    absolute: bool = False

    def met(self, figure: "Figure") -> bool:
        """Whether `figure` reaches the bar."""
        reached = figure.median if self.absolute or figure.ratio is None else figure.ratio
        return reached >= self.value if self.better == "higher" else reached <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.better == 'higher' else '<='} {self.value:g}"


@attrs.frozen(kw_only=True)
class Figure:
    """One line of a result: `samples`, one per round, and `ratios` to `limit`, round by round,
    since a noisy machine is noisy for both."""

    suite: str
    name: str
    unit: str
    better: Better = "higher"
    samples: list[float]
    limit: str | None = None
    ratios: list[float] | None = None
    bar: Bar | None = None

    @property
    def median(self) -> float:
        """The figure itself."""
        return median(self.samples)

    @property
    def spread(self) -> float:
        """How far to trust it."""
        return spread(self.ratios or self.samples)

    @property
    def ratio(self) -> float | None:
        """How much of the limit it reaches."""
        return median(self.ratios) if self.ratios else None

    @property
    def comparable(self) -> float:
        """What can be held against another run, perhaps of another machine."""
        return self.ratio if self.ratio is not None else self.median
