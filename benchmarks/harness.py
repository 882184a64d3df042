"""The harness: warm up, repeat, interleave, and speak in ratios.

Cases of one group are measured in turns within each round, so that whatever else the machine does
hits all of them; ratios are taken round by round.
"""

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from benchmarks.figure import Bar, Better, Figure

Measure = Callable[[], float]
"""Does the work once and gives the figure: a rate, a time, a size."""

Survey = Callable[[], Mapping[str, float]]
"""Does the work once and gives several figures by name."""


@attrs.frozen(kw_only=True)
class Metric:
    """How to read one figure of a survey, and what it must reach, by case."""

    unit: str
    better: Better = "higher"
    bars: Mapping[str, Bar] = attrs.field(factory=dict)


class Suite(Protocol):
    """A module of benchmarks."""

    __name__: str

    def run(self, bench: "Bench") -> None:
        """Measure everything, through `bench`."""


@attrs.define
class Bench:
    """What a suite measures with."""

    suite: str
    repeat: int = 5
    quick: bool = False
    long: bool = False
    figures: list[Figure] = attrs.field(factory=list)

    def size(self, full: int, quick: int, long: int | None = None) -> int:
        """How much work to do: less of it in a quick run, and more in a long one if given."""
        if self.quick:
            return quick
        return long if self.long and long is not None else full

    def group(
        self,
        name: str,
        cases: Mapping[str, Measure],
        *,
        unit: str,
        limit: str | None = None,
        bars: Mapping[str, Bar] | None = None,
        better: Better = "higher",
        warm_up: bool = True,
    ) -> None:
        """Measure `cases` in turns; those other than `limit` are given as ratios to it."""
        metric = Metric(unit=unit, better=better, bars=bars or {})
        surveys = {
            case: (lambda measure=measure: {"": measure()}) for case, measure in cases.items()
        }
        self.survey(name, surveys, metrics={"": metric}, limit=limit, warm_up=warm_up)

    def survey(
        self,
        name: str,
        cases: Mapping[str, Survey],
        *,
        metrics: Mapping[str, Metric],
        limit: str | None = None,
        warm_up: bool = True,
    ) -> None:
        """Measure `cases` in turns, each giving all of `metrics`."""
        taken = self._rounds(name, cases, warm_up)
        for label, metric in metrics.items():
            base = [found[label] for found in taken[limit]] if limit is not None else None
            for case, found in taken.items():
                samples = [figures[label] for figures in found]
                ratios = None
                if base and all(base) and case != limit:
                    ratios = [a / b for a, b in zip(samples, base, strict=True)]
                self.figures.append(
                    Figure(
                        suite=self.suite,
                        name=", ".join(part for part in (name, label, case) if part),
                        unit=metric.unit,
                        better=metric.better,
                        samples=samples,
                        limit=limit if ratios else None,
                        ratios=ratios,
                        bar=metric.bars.get(case),
                    )
                )

    def _rounds(
        self, name: str, cases: Mapping[str, Survey], warm_up: bool
    ) -> dict[str, list[Mapping[str, float]]]:
        taken: dict[str, list[Mapping[str, float]]] = {case: [] for case in cases}
        names = list(cases)
        for turn in range(-1 if warm_up else 0, self.repeat):
            # Each round begins with another case: nobody always comes after the same neighbour.
            cut = turn % len(names)
            for case in names[cut:] + names[:cut]:
                self._progress(f"{self.suite}: {name}, {case}", turn)
                gc.collect()
                figures = cases[case]()
                if turn >= 0:
                    taken[case].append(figures)
        self._progress("", self.repeat)
        return taken

    def _progress(self, what: str, turn: int) -> None:
        if sys.stderr.isatty():
            done = f"[{max(turn, 0)}/{self.repeat}] " if what else ""
            print(f"\r\x1b[K{done}{what}", end="", file=sys.stderr, flush=True)
        elif turn == 0:
            print(what, file=sys.stderr, flush=True)
