"""Checkpoint policies: how often a run waits until its outcomes are durable.

By default each step waits for the outcomes before it. A workflow that accepts that a crash repeats
a few steps can relax this wait. Nothing else is relaxed: outcomes are committed in order, so a
crash loses only the last ones, and results, hooks, signals, children and at-most-once steps wait
for every outcome before them.
"""

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from keyrun.runtime.validators import at_least, positive

if TYPE_CHECKING:
    from keyrun.storage.group import Group


@attrs.frozen
class EverySteps:
    """Wait until the outcomes are durable after every `count` steps. A crash repeats at most
    `count - 1` completed steps."""

    count: int = attrs.field(validator=at_least(1))
    """The number of steps between two waits."""


@attrs.frozen
class EverySeconds:
    """Wait until the outcomes are durable when `seconds` seconds have passed since the last wait.
    A crash repeats at most the steps that were completed since then."""

    seconds: float = attrs.field(validator=positive)
    """The seconds between two waits."""


@attrs.frozen
class Manual:
    """Wait until the outcomes are durable only at `ctx.checkpoint()`. A crash repeats at most the
    steps that were completed since then."""


Checkpoint = EverySteps | EverySeconds | Manual


class CheckpointedRun(Protocol):
    """A run with a checkpoint policy."""

    staged: "Group | None"


class Checkpointer:
    """Decides for one run after which steps the next step waits for the commit."""

    __slots__ = ("_checkpoint", "_since", "_steps")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._steps = 0
        self._since = trio.current_time()

    def step_done(self, run: CheckpointedRun) -> None:
        """Record that the outcome of a step is staged. The next step waits for it only if a wait is
        due."""
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
        """Start counting anew, because the run waits for all its outcomes."""
        self._steps = 0
        self._since = trio.current_time()
