"""The watch: iterate over the progress of a run until the run ends."""

from collections.abc import Awaitable, Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Self

import trio

from keyrun.actors import checks
from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.inspect.progress import Progress
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import NoEnd
from keyrun.storage import StoreClosed

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Subscribers
    from keyrun.runtime.events.types import Brief, Event
    from keyrun.runtime.inspect.run_inspector import RunView
    from keyrun.runtime.runs import End, RunTable


class Changes:
    """Notices that a run has changed or ended. It does not keep the events, so many events cost
    little."""

    def __init__(self, run_id: str, subscribers: "Subscribers", runs: "RunTable") -> None:
        self.run_id: str | None = run_id
        self._subscribers = subscribers
        self._runs = runs
        self._number: int | None = None
        self._open = False
        self._woken = trio.Event()
        self.changed = False
        self.over = False
        """Whether the run has ended, or the runtime was closed."""
        self.ended: Run | None = None
        """The run, once it has ended."""

    def open(self) -> None:
        """Notice changes from now on."""
        self._open = True
        self._subscribers.add(self)

    def expect_end(self, number: int) -> None:
        """Notice the end of the run from now on."""
        self._number = number
        self._runs.when_ended(number, self._ended)

    def take(self, events: "Sequence[Event | Brief]") -> None:
        """Record that the run has changed."""
        if not self.changed:
            self.changed = True
            self._woken.set()

    def end(self) -> None:
        """Record that the runtime was closed."""
        self.over = True
        self._woken.set()

    def _ended(self, number: int, end: "End") -> None:
        if not isinstance(end, Run | NoEnd):
            # The run is quarantined: that is a change, not an end.
            self.expect_end(number)
            return
        self._number = None
        if end is not NoEnd.CLOSED:
            self.ended = end if isinstance(end, Run) else None
            self.changed = True
        self.end()

    async def wait(self, *, until: float) -> None:
        """Return when the run has changed, but not before `until` unless it has ended."""
        while not self.over and (not self.changed or trio.current_time() < until):
            self._woken = trio.Event()
            with trio.move_on_at(until if self.changed else float("inf")):
                await self._woken.wait()

    def close(self) -> None:
        """Stop noticing changes."""
        if self._open:
            self._open = False
            self._subscribers.remove(self)
        if self._number is not None:
            self._runs.ignore_end(self._number, self._ended)
            self._number = None


def check_interval(interval: float) -> float:
    """Return an interval. Raise ValueError if it is not a number of seconds."""
    if not checks.is_number(interval) or not interval >= 0 or not isfinite(interval):
        raise ValueError(f"interval must be at least 0 seconds, got {interval!r}")
    return interval


class Watch:
    """Iterate over the `Progress` of a run. `rt.watch` and `reader.watch` return a watch.

    Each step of the iteration yields the current progress. A slow reader misses progress in
    between, but never the end of the run."""

    _over = True

    def __init__(
        self,
        run_id: str,
        find: Callable[[str], Awaitable[int | None]],
        look_at: "Callable[[int], RunView]",
        interval: float,
        changes: Changes | None = None,
    ) -> None:
        self._run_id = run_id
        self._find = find
        self._look_at = look_at
        self._interval = check_interval(interval)
        self._changes = changes
        self._look: RunView | None = None
        self._looked = 0.0
        self._last: Progress | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress:
        try:
            return await self._next()
        except Exception:
            self.close()
            raise

    async def _next(self) -> Progress:
        if self._over:
            raise StopAsyncIteration
        look, changes = self._look, self._changes
        if look is None:
            look = self._look = await self._begin()
        while True:
            if self._last is not None:
                await self._wait()
            self._looked = trio.current_time()
            found = await look.progress(None if changes is None else changes.ended)
            if found is None:
                if self._last is None:
                    raise self._unknown()
                raise StopAsyncIteration
            if found != self._last:
                self._last = found
                if found.state.terminal:
                    self.close()
                return found

    async def _begin(self) -> "RunView":
        if self._changes is not None:
            # Before the first read, so that no change between the two is lost.
            self._changes.open()
        number = await self._find(self._run_id)
        if number is None:
            raise self._unknown()
        if self._changes is not None:
            self._changes.expect_end(number)
        return self._look_at(number)

    async def _wait(self) -> None:
        """Return when the progress may have changed."""
        changes, until = self._changes, self._looked + self._interval
        if changes is None:
            await trio.sleep_until(until)
            return
        await changes.wait(until=until)
        if not changes.changed:
            raise StoreClosed(
                "the runtime was closed before the run ended; the run resumes when the store is "
                "opened again"
            )
        changes.changed = False

    def _unknown(self) -> UnknownRun:
        return UnknownRun(
            f"no run has the id {self._run_id!r}, or it was forgotten", run_id=self._run_id
        )

    def close(self) -> None:
        """Stop the watch. You need not call this: a watch without references is closed."""
        self._over = True
        if self._changes is not None:
            self._changes.close()

    def __del__(self) -> None:
        if not self._over:
            self.close()
