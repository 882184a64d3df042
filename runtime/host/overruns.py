"""Overruns: report sync steps whose timeout has passed while their thread still runs.

A thread cannot be stopped. The attempt keeps its slot and its key until its function returns, and
counts as timed out then. When the timeout passes, Keyrun logs the overrun and adds it to the
history.
"""

from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.records.journal_entry import STEP_OVERRUN

if TYPE_CHECKING:
    from keyrun.runtime.events.emitter import EventStep


class OverrunRun(emitter.EventRun, Protocol):
    """The run of a step in a thread."""

    @property
    def deadline(self) -> float: ...

    def note(self, ident: str, what: str, *details: Any) -> None:
        """Stage a journal entry for the history."""


class WatchedAttempt:
    """An attempt in a thread, and the time of its timeout."""

    __slots__ = ("begun", "current", "limit", "run", "until")

    def __init__(self, run: "OverrunRun", current: "EventStep") -> None:
        self.run = run
        self.current = current
        now = trio.current_time()
        own = inf if current.until is None else current.until
        self.until = min(own, run.deadline)
        self.limit = current.timeout if own <= run.deadline else run.deadline - now
        self.begun = False
        """Whether its thread runs. Before that, the attempt can still be stopped."""


class Overruns:
    """Watches the attempts that run in threads."""

    def __init__(self) -> None:
        self._watched: dict[WatchedAttempt, None] = {}
        self._next = inf
        self._loop = DueLoop(self._report_due)

    def watch(self, run: "OverrunRun", current: "EventStep") -> WatchedAttempt:
        """Watch an attempt that is about to run in a thread."""
        watched = WatchedAttempt(run, current)
        if watched.until < inf:
            self._watched[watched] = None
            if watched.until < self._next:
                self._loop.wake()
        return watched

    def returned(self, watched: WatchedAttempt) -> None:
        """Stop watching an attempt whose thread has returned."""
        self._watched.pop(watched, None)

    async def run(self) -> None:
        """Report overruns until cancelled."""
        await self._loop.run()

    async def _report_due(self) -> float:
        """Report the attempts that exceed their timeout. Return when the next timeout is due."""
        now = trio.current_time()
        for watched in [each for each in self._watched if each.until <= now]:
            del self._watched[watched]
            if watched.begun:
                _report(watched)
        self._next = min((each.until for each in self._watched), default=inf)
        return self._next


def _report(watched: WatchedAttempt) -> None:
    run, current, limit = watched.run, watched.current, watched.limit
    run.note(current.step, STEP_OVERRUN, current.attempt, limit)
    said = (
        f"step {current.step!r}, attempt {current.attempt}, exceeded its timeout of {limit:g} s, "
        "and its thread still runs; its slot and its key stay held until it returns"
    )
    feed = run.feed
    if feed is not None:
        emitter.step_stopped(feed, EventKind.STEP_OVERRUN, run, current, said)
    log(run, "step_overrun", said, current=current)
