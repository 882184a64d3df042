"""Limits of runs and steps. Each limit is resolved separately, and the most specific level applies:
submit, then workflow, then runtime, then the defaults."""

from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import Any

import attrs

from keyrun.runtime.validators import at_least, if_set, positive
from keyrun.runtime.values import UNSET, Unset


@attrs.frozen(kw_only=True)
class Limits:
    """Limit a run and its steps.

    A limit that is not set comes from the next level: submit, then workflow, then runtime, then the
    default. None removes a limit, except `max_interruptions`.
    """

    run_timeout: float | Unset | None = attrs.field(default=UNSET, validator=if_set(positive))
    """Seconds from the start of the run to its end, waits and restarts included. Default: no
    limit."""
    step_timeout: float | Unset | None = attrs.field(default=UNSET, validator=if_set(positive))
    """Seconds for one attempt of a step. `@step(timeout=...)` comes before this limit.
    Default: 300."""
    max_attempts: int | Unset | None = attrs.field(default=UNSET, validator=if_set(at_least(1)))
    """Attempts of a step that has no `retry` of its own. Default: that of the retry policy of the
    workflow, or 3."""
    max_iterations: int | Unset | None = attrs.field(default=UNSET, validator=if_set(at_least(1)))
    """Steps or turns of one run, retries not counted. Default: 10,000."""
    retry_budget: int | Unset | None = attrs.field(default=UNSET, validator=if_set(at_least(0)))
    """Retries of one run, over all its steps. Default: no limit."""
    max_interruptions: int | Unset = attrs.field(default=UNSET, validator=if_set(at_least(1)))
    """Crashes of the process that may interrupt one step before the step fails. Default: 5."""

    def over(self, below: "Limits") -> "Limits":
        """Return these limits, with those of `below` where a limit is not set."""
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
"""The limits that apply if no level sets them. Without `max_attempts`, the retry policy decides."""


@attrs.frozen(kw_only=True)
class ResolvedLimits:
    """Limits that are all set, as they are stored with the run."""

    run_timeout: float | None
    step_timeout: float | None
    max_attempts: int | None
    max_iterations: int | None
    retry_budget: int | None
    max_interruptions: int

    stored: tuple[float | None, ...] = attrs.field(init=False, eq=False, repr=False)
    """The stored form. It is made once, because runs of one workflow share their limits."""

    attempt_timeout: float = attrs.field(init=False, eq=False, repr=False)
    """Seconds for one attempt of a step without a timeout of its own; `inf` without a limit."""

    @attempt_timeout.default
    def _attempt_timeout(self) -> float:
        return inf if self.step_timeout is None else self.step_timeout

    most_iterations: float = attrs.field(init=False, eq=False, repr=False)
    """The most steps or turns of a run; `inf` without a limit."""

    @most_iterations.default
    def _most_iterations(self) -> float:
        return inf if self.max_iterations is None else self.max_iterations

    @stored.default
    def _stored(self) -> tuple[float | None, ...]:
        return tuple(getattr(self, name) for name in _NAMES)

    @classmethod
    def read(cls, stored: Iterable[Any]) -> "ResolvedLimits":
        """Return the limits of a stored form, the inverse of `stored`."""
        return _read(tuple(stored))

    @classmethod
    def of(cls, *levels: Limits) -> "ResolvedLimits":
        """Resolve `levels`, the most specific first, over the defaults."""
        resolved = DEFAULTS
        for level in reversed(levels):
            resolved = level.over(resolved)
        return cls(**{name: getattr(resolved, name) for name in _NAMES})


@lru_cache(256)
def _read(stored: tuple[Any, ...]) -> ResolvedLimits:
    return ResolvedLimits(**dict(zip(_NAMES, stored, strict=True)))
