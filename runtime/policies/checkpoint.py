"""Checkpoint policies: how often a run waits until its outcomes are durable.

By default each step waits for the outcomes before it. A workflow that accepts that a crash repeats
a few steps can relax this wait. Nothing else is relaxed: outcomes are committed in order, so a
crash loses only the last ones, and results, hooks, signals, children and at-most-once steps wait
for every outcome before them.
"""

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

if TYPE_CHECKING:
    from keyrun.storage.group import Group


@attrs.frozen
class EverySteps:
    """Wait after every so many steps: a crash repeats at most one fewer that were done."""

    count: int = attrs.field()

    @count.validator
    def _check(self, attribute: object, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"count must be a whole number of at least 1, got {value!r}")


@attrs.frozen
class EverySeconds:
    """Wait when so many seconds have passed since the last time: a crash repeats at most the steps
    that were done in them."""

    seconds: float = attrs.field()

    @seconds.validator
    def _check(self, attribute: object, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"seconds must be positive, got {value!r}")


@attrs.frozen
class Manual:
    """Wait only at `ctx.checkpoint()`: a crash repeats at most the steps that were done since."""


Checkpoint = EverySteps | EverySeconds | Manual


class CheckpointedRun(Protocol):
    """A run with a checkpoint policy."""

    staged: "Group | None"


class Cadence:
    """Where a run is between two waits."""

    __slots__ = ("_checkpoint", "_since", "_steps")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._steps = 0
        self._since = trio.current_time()

    def step_done(self, run: CheckpointedRun) -> None:
        """The outcome of a step is staged: have the next step wait for it only if that is due."""
        self._steps += 1
        match self._checkpoint:
            case EverySteps(count=count):
                due = self._steps >= count
            case EverySeconds(seconds=seconds):
                due = trio.current_time() - self._since >= seconds
            case _:
                due = False
        if due:
            self.reset()
        else:
            run.staged = None

    def reset(self) -> None:
        """All that was done is, or is about to be, waited for."""
        self._steps = 0
        self._since = trio.current_time()
