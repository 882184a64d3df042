"""Limits: how long, how often, how many. Each is resolved on its own, the nearest word wins."""

from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import Any

import attrs

from keyrun.runtime.values import UNSET, Unset


def _positive(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is UNSET or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value!r}")


def _count(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is UNSET or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{attribute.name} must be a whole number of at least 1, got {value!r}")


def _budget(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if value is UNSET or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{attribute.name} must be a whole number of at least 0, got {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of a run and its steps. What is not given comes from the next level: submit, then
    workflow, then runtime, then the defaults. None lifts a limit where that is allowed.

    `run_timeout`: seconds from the first step to the end, waiting and restarts included.
    `step_timeout`: seconds for one attempt. `max_attempts`: executions of one step.
    `max_iterations`: steps of one run, retries not counted. `retry_budget`: retries of one run.
    `max_interruptions`: crashes that one step may cause.
    """

    run_timeout: float | Unset | None = attrs.field(default=UNSET, validator=_positive)
    step_timeout: float | Unset | None = attrs.field(default=UNSET, validator=_positive)
    max_attempts: int | Unset | None = attrs.field(default=UNSET, validator=_count)
    max_iterations: int | Unset | None = attrs.field(default=UNSET, validator=_count)
    retry_budget: int | Unset | None = attrs.field(default=UNSET, validator=_budget)
    max_interruptions: int | Unset = attrs.field(default=UNSET, validator=_count)

    def over(self, below: "Limits") -> "Limits":
        """These limits, and `below` where they say nothing."""
        if self == _NOTHING:
            return below
        given = {name: value for name in _NAMES if (value := getattr(self, name)) is not UNSET}
        return attrs.evolve(below, **given)


_NOTHING = Limits()
_NAMES = tuple(field.name for field in attrs.fields(Limits))

DEFAULTS = Limits(
    run_timeout=None,
    step_timeout=300.0,
    max_attempts=None,
    max_iterations=10_000,
    retry_budget=None,
    max_interruptions=5,
)
"""What holds where nobody says anything. `max_attempts` None leaves it to the retry policy."""


@attrs.frozen(kw_only=True)
class ResolvedLimits:
    """Limits with nothing left open, as they are stored with the run."""

    run_timeout: float | None
    step_timeout: float | None
    max_attempts: int | None
    max_iterations: int | None
    retry_budget: int | None
    max_interruptions: int

    stored: tuple[float | None, ...] = attrs.field(init=False, eq=False, repr=False)
    """As they are stored, made once: runs of one workflow share their limits."""

    patience: float = attrs.field(init=False, eq=False, repr=False)
    """Seconds for one attempt of a step that says nothing itself."""

    @patience.default
    def _patience(self) -> float:
        return inf if self.step_timeout is None else self.step_timeout

    @stored.default
    def _stored(self) -> tuple[float | None, ...]:
        return tuple(getattr(self, name) for name in _NAMES)

    @classmethod
    def read(cls, stored: Iterable[Any]) -> "ResolvedLimits":
        """The inverse of `stored`."""
        return _read(tuple(stored))

    @classmethod
    def of(cls, *levels: Limits) -> "ResolvedLimits":
        """Resolve `levels`, the nearest first, over the defaults."""
        resolved = DEFAULTS
        for level in reversed(levels):
            resolved = level.over(resolved)
        return cls(**{name: getattr(resolved, name) for name in _NAMES})


@lru_cache(256)
def _read(stored: tuple[Any, ...]) -> ResolvedLimits:
    return ResolvedLimits(**dict(zip(_NAMES, stored, strict=True)))
