"""The run table: the one owner of where each run is, and of the callbacks that wait for its end.

Most runs are only in the store, and the store says where they are. The table has an entry for a run
while memory knows more than the store:

- an actor drives the run, or is about to (`LIVE`), or cancels it so that it can leave memory
  (`EVICTING`);
- the run was changed while no actor drives it, and the commit of that change is under way
  (`QUEUED`, `EVICTED`, `DELAYED`);
- the commit that gives an evicted run something to do is under way (`WAKING`);
- the run waits for its start time (`DELAYED`);
- a redrive or the removal of the run is being committed (`Change`).

A run has at most one `Run` object in the table. Everything that reads or changes a run asks `find`
for that object first, and the store only if there is none.

Reads of the store never suspend. So an operation that has the number from `number_of` may read and
stage until its next real `await`, and no other operation on that run is half done. If an operation
changes memory when it is durable, it does so in `group.when_durable`, because its caller may be
cancelled while it waits for the commit.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from keyrun.runtime.run.run import Location
from keyrun.storage import StoreClosed

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import StatusRecord, Submission
    from keyrun.runtime.records.tables import Ledger
    from keyrun.runtime.run.run import Run
    from keyrun.storage.group import Group


# Looking a member up in its enum takes as long as a call.
_LIVE, _EVICTING = Location.LIVE, Location.EVICTING
_AT_REST = frozenset({Location.QUEUED, Location.EVICTED, Location.DELAYED})

MOVES: dict[Location, frozenset[Location]] = {
    Location.QUEUED: frozenset({Location.LIVE}) | _AT_REST,
    Location.LIVE: frozenset({Location.EVICTING}) | _AT_REST,
    Location.EVICTING: frozenset({Location.LIVE, Location.EVICTED, Location.QUEUED}),
    Location.EVICTED: _AT_REST,
    Location.DELAYED: _AT_REST,
}
"""Where a run that is in the table may go. An evicted or delayed run becomes live through the
store: it is loaded as a new object."""


class Change(Enum):
    """A change of a run as a whole that is being committed."""

    REDRIVE = "redrive"
    REMOVAL = "removal"


class NoEnd(Enum):
    """Why the end of a run will never be reported."""

    FORGOTTEN = "forgotten"
    """All records of the run are removed."""
    CLOSED = "closed"
    """The runtime was closed. The run resumes when the store is opened again."""


End: TypeAlias = "Run | StatusRecord | NoEnd"
"""The argument of a callback: the run itself if it ended, its status if it is quarantined, or the
reason why there will be no end."""

EndCallback: TypeAlias = "Callable[[int, End], None]"
"""Called with the number of a run and its `End`."""


class IllegalMove(AssertionError):
    """A run was moved to where it cannot go: a bug in Keyrun."""


def is_driven(run: "Run") -> bool:
    """Return whether the actor of its key drives a run."""
    return run.location is _LIVE or run.location is _EVICTING


class RunTable:
    """Knows where each run is, as far as memory knows better than the store."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._runs: dict[int, Run] = {}
        self._at_rest: dict[str, int] = {}
        """The number of runs in the table that no actor drives, by key."""
        self._waking: set[int] = set()
        self._delayed: dict[int, Submission] = {}
        self._changes: dict[int, tuple[Change, Group]] = {}
        self._callbacks: dict[int, EndCallback | list[EndCallback]] = {}
        """The callbacks that wait for the end of a run."""
        self._closed = False

    def find(self, number: int) -> "Run | None":
        """Return the run as memory knows it, or None if the store is right about it."""
        return self._runs.get(number)

    def live(self, number: int) -> "Run | None":
        """Return the run if the actor of its key drives it."""
        run = self._runs.get(number)
        return run if run is not None and is_driven(run) else None

    def at_rest(self, number: int) -> "Run | None":
        """Return the run if it was changed while no actor drives it, and the store does not show
        the change yet."""
        run = self._runs.get(number)
        return run if run is not None and not is_driven(run) else None

    def location(self, number: int) -> Location | None:
        """Return where a run is; None if the store is right about it."""
        if number in self._waking:
            return Location.WAKING
        run = self._runs.get(number)
        if run is not None:
            return run.location
        return Location.DELAYED if number in self._delayed else None

    def all_live(self) -> "list[Run]":
        """Return the runs that an actor drives."""
        return [run for run in self._runs.values() if is_driven(run)]

    def __iter__(self) -> "Iterator[Run]":
        return iter(self._runs.values())

    def __bool__(self) -> bool:
        """Return whether memory knows anything that the store does not."""
        return bool(self._runs or self._waking or self._delayed or self._changes)

    def has_unsaved(self, key: str) -> bool:
        """Return whether a run of this key was changed at rest and that is not durable yet."""
        return key in self._at_rest

    # Transitions.

    def take(self, run: "Run") -> None:
        """Record that the actor of its key drives a run that was just made or loaded."""
        number = run.number
        if number in self._runs:
            raise IllegalMove(f"run {number} is {self._runs[number].location.value} already")
        self._runs[number] = run
        run.location = _LIVE

    def move(self, run: "Run", to: Location) -> None:
        """Move a run to another location. Raise `IllegalMove` if that is not allowed."""
        number, here, key = run.number, run.location, run.key
        there = self._runs.get(number)
        if (there is not None and there is not run) or to not in MOVES[here]:
            raise IllegalMove(f"run {number} cannot move from {here.value} to {to.value}")
        was_at_rest = there is not None and not is_driven(run)
        at_rest = self._at_rest.get(key, 0) + (to in _AT_REST) - was_at_rest
        # Nothing is called from here on, so that an internal error cannot interrupt the move.
        self._runs[number] = run
        run.location = to
        if at_rest:
            self._at_rest[key] = at_rest
        else:
            self._at_rest.pop(key, None)

    def remove(self, run: "Run") -> None:
        """Record that the store is right about a run from now on."""
        if self._runs.get(run.number) is run:
            if not is_driven(run):
                self._forget_key(run.key)
            del self._runs[run.number]

    def _forget_key(self, key: str) -> None:
        left = self._at_rest[key] - 1
        if left:
            self._at_rest[key] = left
        else:
            del self._at_rest[key]

    def keep_until_durable(self, run: "Run", group: "Group", location: Location) -> None:
        """Keep a run that was changed at rest until the store shows the change. Call this last
        in the block that stages the change."""
        group.when_durable(self._saved, run, group)
        self.move(run, location)

    def _saved(self, run: "Run", group: "Group") -> None:
        if run.staged is group and not is_driven(run):
            self.remove(run)

    # Ends.

    def when_ended(self, number: int, callback: EndCallback) -> None:
        """Call `callback` once, when the end or the quarantine of a run is durable, when the run
        was forgotten, or when the runtime closes. A callback that ignores quarantines
        registers again."""
        if self._closed:
            raise StoreClosed("the runtime was closed; open it again to continue")
        known = self._callbacks.get(number)
        if known is None:
            # Most runs have one callback, and a list would be one more object for each of them.
            self._callbacks[number] = callback
        elif isinstance(known, list):
            known.append(callback)
        else:
            self._callbacks[number] = [known, callback]

    def ignore_end(self, number: int, callback: EndCallback) -> None:
        """Do not call a callback any more that `when_ended` may have registered."""
        known = self._callbacks.get(number)
        if isinstance(known, list):
            if callback in known:
                known.remove(callback)
        elif known == callback:
            del self._callbacks[number]

    def report_end(self, number: int, end: End) -> None:
        """Call the callbacks that wait for the end of a run."""
        known = self._callbacks.pop(number, None)
        if isinstance(known, list):
            for callback in known:
                callback(number, end)
        elif known is not None:
            known(number, end)

    def end(self, run: "Run") -> None:
        """Record that the end of a run is durable, and call the callbacks that wait for it."""
        self.remove(run)
        self.report_end(run.number, run)

    def report_unreachable_ends(self) -> None:
        """Report that runs which are not in memory will not end, because a drain starts none. The
        caller may be a step whose thread keeps the drain waiting."""
        for number in [each for each in self._callbacks if each not in self._runs]:
            self.report_end(number, NoEnd.CLOSED)

    def close(self) -> None:
        """Report that no more runs will end."""
        self._closed = True
        while self._callbacks:
            self.report_end(next(iter(self._callbacks)), NoEnd.CLOSED)

    # Evicted runs that have something to do.

    def is_waking(self, number: int) -> bool:
        """Return whether the commit that puts an evicted run back into its queue is under way."""
        return number in self._waking

    def begin_waking(self, number: int) -> None:
        """Record that the commit which wakes a run is under way."""
        self._waking.add(number)

    def end_waking(self, number: int) -> bool:
        """Record that the run is awake, or has ended meanwhile. Returns whether it was waking."""
        if number in self._waking:
            self._waking.discard(number)
            return True
        return False

    # Delayed runs.

    def delayed(self, number: int) -> "Submission | None":
        """Return what was submitted if the run waits for its start time."""
        return self._delayed.get(number)

    def begin_delay(self, submission: "Submission") -> None:
        """Record that a run waits for its start time."""
        self._delayed[submission.number] = submission

    def end_delay(self, number: int) -> "Submission | None":
        """Record that a run does not wait for its start time any more. Returns what was submitted
        if it did."""
        return self._delayed.pop(number, None)

    # Redrives and removals.

    async def number_of(self, run_id: str) -> int | None:
        """Return the number of a run id, when no redrive or removal of that run is being committed.
        Until the next `await` that suspends, none begins."""
        while True:
            number = await self._ledger.find(run_id)
            change = None if number is None else self._changes.get(number)
            if change is None:
                return number
            await change[1].wait()

    async def settled(self, number: int) -> None:
        """Return when the store is right about a run that no actor drives."""
        while True:
            if (change := self._changes.get(number)) is not None:
                await change[1].wait()
            elif (run := self.at_rest(number)) is not None:
                await run.gate()
            else:
                return

    def is_settled(self, number: int) -> bool:
        """Return whether the store is right about a run."""
        return number not in self._runs and number not in self._changes

    def changing(self, number: int) -> Change | None:
        """Return which change of a run as a whole is being committed."""
        change = self._changes.get(number)
        return None if change is None else change[0]

    def begin_change(self, number: int, change: Change, group: "Group") -> None:
        """Record that `group` redrives or removes a run. Other operations wait for that commit."""
        self._changes[number] = change, group
        group.when_dropped(self._changes.pop, number, None)
        group.when_durable(self._end_change, number)

    def _end_change(self, number: int) -> None:
        change, _ = self._changes.pop(number)
        if change is Change.REMOVAL:
            self.report_end(number, NoEnd.FORGOTTEN)
