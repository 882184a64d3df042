"""A line: the runs of one ordering key, of which only the first is driven, in the order of their
places, and the durable mapping of the key."""

from typing import TYPE_CHECKING

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.queue.queue_window import Places
from keyrun.runtime.queue.resume_order import in_the_middle
from keyrun.runtime.records.submission import Standing, Submission
from keyrun.runtime.recovery.corruption import set_aside
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.run.loading import Stored, assemble, load
from keyrun.runtime.run.quarantine import quarantine_unregistered, try_again
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.running_step import RunningStep
from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.queued_call import QueuedCall

LIGHT = 256
"""Bytes of a key's mapping that may stay in memory when there is nothing to do."""


class KeyQueue(Places):
    """The queue of one key."""

    __slots__ = (
        "_state",
        "_untouched",
        "awake",
        "calls",
        "entering",
        "head",
        "holder",
        "paused",
        "pending",
        "queued",
        "recovered",
    )

    def __init__(self, partition: "Partition", key: str, *, known: bool) -> None:
        super().__init__(partition, key, known=known)
        self._untouched = not known
        """Whether no run was driven since the store was opened."""
        self.recovered = False
        """Whether its first run was there when the store was opened, and nobody was told yet that
        it goes on."""
        self.head: Run | None = None
        self.awake = False
        self.queued = False
        """Whether it stands at the entrance."""
        self.entering = False
        """Whether it was let in, and its first run has not begun."""
        self.paused = False
        self.pending = 0
        self._state: bytes | None = None
        """The key's mapping as it is stored, empty if there is none; None if it was not read."""
        self.holder: RunningStep | None = None
        self.calls: list[QueuedCall] | None = None
        """Calls of entities that have not begun, in order; they are nowhere else."""

    def admit(self, submission: Submission) -> None:
        """A run has its place, which is its number, durably."""
        self._append(submission.number, submission.number, submission)

    def admit_stored(self, place: int, number: int) -> None:
        """A run that was there before has a place again, durably."""
        self._append(place, number, None)

    def _append(self, place: int, number: int, submission: Submission | None) -> None:
        self.put(place, number, submission)
        if self.head is not None and self.head.parked:
            self.partition.eviction.overtake(self.head)
        self.wake()

    def reload(self, number: int) -> None:
        """The first run was changed in the store: drive it from there."""
        if self.head is not None and self.head.number == number:
            self.partition.runs.remove(self.head)
            if not self.head.pending:
                self.partition.backlog.enter(self)
            self.head = None
        self.forget_submission(number)
        self.wake()

    def rewind(self) -> None:
        """Know nothing of the runs: they are read from the store when the line is served."""
        self.blank()
        self.head = self.holder = self.group = self._state = None

    @property
    def others(self) -> bool:
        """Whether there is something else than the first run that could go ahead of it."""
        return len(self.window) > 1 or self._more or bool(self.calls)

    def evict_head(self, run: Run) -> None:
        """The first run has left memory to wait, and holds the line."""
        self.leave(run)
        self.sleeper = run.number

    def release_memory(self) -> None:
        """Be known by name only, while the run that holds the line sleeps. A line that another one
        has replaced knows nothing of the key any more."""
        partition = self.partition
        if partition.queues.get(self.key) is not self:
            return
        if self.sleeper is not None and not self.awake and self.forget():
            partition.asleep[self.key] = (self.sleeper, self.pending)
            partition.queues.pop(self.key, None)

    def wake_up(self, place: int, number: int) -> None:
        """A run that had left memory has something to do, durably."""
        self.put_back(place, number)
        self.wake()

    def drop(self, number: int) -> None:
        """A run that held the line is gone."""
        if self.head is not None and self.head.number == number:
            self.head = None
        self.remove(number)
        self.wake()

    def wake(self) -> None:
        """Have the line looked at by its actor, unless all ends, when its turn comes."""
        partition = self.partition
        if self.awake or self.queued or partition.draining:
            return
        if self.sleeper is not None:
            self.release_memory()
            return
        if self.head is None and not (self.calls and len(self.calls) == self.pending):
            # Calls alone need not be let in: their callers are in memory anyway.
            concurrency_gate = partition.concurrency_gate
            if concurrency_gate.closed and self.pending:
                concurrency_gate.enqueue(self, self.first_priority())
                return
            self.entering = True
            concurrency_gate.under_way += 1
        self.awake = True
        partition.actors.tell_nowait(self.key, self)

    def reusable(self) -> bool:
        """Whether it is empty as it was made, once its actor has left it. Of no weight then."""
        if self._state and len(self._state) > LIGHT:
            self._state = None
        return self.head is None and self.holder is None and not self._more

    def forget(self) -> bool:
        """Drop what is in memory of a line that is not looked at, unless that would lose
        something. Says whether it did."""
        partition = self.partition
        if self.head is not None or self.paused or self.calls:
            return False
        if not (self.group is None or self.group.durable):
            return False
        if partition.runs.has_unsaved(self.key):
            return False
        self.rewind()
        return True

    def revive(self, pending: int) -> None:
        """It was known by name only: it stands at the entrance, and what there is to run is in the
        store, also where the index of places is still being read."""
        self.pending = pending
        self.queued = True
        self._overtaken = True

    def rouse(self, sleeper: int, pending: int) -> None:
        """It was known by name only, since this run of it sleeps."""
        self.sleeper = sleeper
        self.pending = pending
        self._overtaken = True
        # What was driven when the process was killed did not sleep.
        self._untouched = False

    def entered(self) -> None:
        """Its first run has begun, or there is none to begin."""
        if self.entering:
            self.entering = False
            self.partition.concurrency_gate.leave()

    def rest(self) -> None:
        """Its actor does not look at the line any more."""
        self.awake = False
        if self.entering:
            self.entered()
        if self.sleeper is not None:
            self.release_memory()
        if self.partition.draining and self.head is not None:
            self.partition.runs.remove(self.head)
            self.head = None

    def leave(self, run: Run) -> None:
        """The first run has ended."""
        self.group = run.staged
        self.head = None
        if self.window[0][1] == run.number:
            del self.window[0]
        else:
            # Others that were there before it have been woken meanwhile.
            self.remove(run.number)

    def dismiss(self, run: Run) -> None:
        """A run that held the line has been settled from outside."""
        if self.head is run:
            self.leave(run)
            self.wake()

    def fresh(self) -> Run | None:
        """The first run of the line, if it came in just now and all that is needed is at hand."""
        if not self.window or self._untouched:
            return None
        partition = self.partition
        place, _, submission = self.window[0]
        if submission is None or (self._state is None and partition.has_key_state):
            return None
        workflow = partition.registry.find(submission.workflow, submission.version)
        if workflow is None:
            return None
        run = Run(partition, self, submission, Standing(place=place), workflow)
        run.staged = self.group
        partition.runs.take(run)
        self.head = run
        if self._state is None:
            self._state = b""
        return run

    async def next(self) -> Run | None:
        """Make the first run of the line ready to be driven, whatever that takes."""
        while True:
            if self.unread:
                await self.read_window(self)
            if not self.window or self.sleeper is not None:
                return None
            place, number, _ = self.window[0]
            try:
                await self.partition.runs.settled(number)
                run = await load(self.partition, self, place, number)
            except StoreCorrupt as error:
                await set_aside(self.partition, number, error, key=self.key, place=place)
                self.remove(number)
                continue
            if run is None:
                self.remove(number)
                continue
            if self._untouched and run.standing.berth is not None:
                ahead = await in_the_middle(run, place)
                if ahead is not None:
                    if ahead.asleep:
                        self.sleeper = ahead.number
                    else:
                        self.bring_forward(ahead.place, ahead.number, self)
                    continue
            untouched = self._untouched
            woken = self._take(run)
            if untouched:
                self.tell_recovered(run)
            if run.workflow is None:
                quarantine_unregistered(run)
            if self._state is None:
                if self.partition.has_key_state:
                    await self._read_state()
                else:
                    self._state = b""
            if run.standing.started_at is not None and not woken:
                run.begin()
            return run

    @property
    def unloaded(self) -> bool:
        """Whether its first run is known, and nothing keeps that from being loaded, but it was not
        since the store was opened."""
        return self._untouched and self.head is None and bool(self.window) and not self.calls

    def lead(self, stored: "Stored") -> None:
        """Take the first run as it was read, if it still is that: the line was woken, and its actor
        has not begun."""
        place, number, _ = self.window[0]
        if stored.number != number or self.head is not None:
            return
        if not self.partition.runs.is_settled(number):
            return
        kept = stored.state
        state = b"" if kept is None else unseal("state", self._prefix, kept)[0]
        run = assemble(self.partition, self, place, stored)
        if run is None:
            self.remove(number)
        elif run.workflow is not None and run.standing.berth is None:
            # Else it is for its actor to quarantine, or to see whether another was in the middle.
            self._take(run)
            self._state = state
            if run.standing.started_at is not None:
                run.begin()
            self.recovered = True

    def _take(self, run: Run) -> bool:
        """A run that was loaded is the first. Says whether it was woken."""
        partition = self.partition
        self.forget_submission(run.number)
        partition.runs.take(run)
        self.head = run
        run.staged = self.group
        standing = run.standing
        woken, standing.berth = standing.berth is not None, None
        if standing.state is State.WAITING:
            # It is driven now. If it has to wait again, it says so.
            standing.state, standing.waiting_on = State.RUNNING, None
        # Only the first run can have been driven when the process was killed, if it was.
        run.careful = self._untouched and partition.unclean
        if woken and not self._untouched and partition.feed is not None:
            emitter.run_goes_on(partition.feed, EventKind.RUN_RESUMED, run)
        self._untouched = False
        if run.standing.state is State.QUARANTINED and run.workflow is not None:
            try_again(run)
        return woken

    def tell_recovered(self, run: Run) -> None:
        """The first run goes on, and whoever listens by now is told."""
        self.recovered = False
        feed, standing, journal = self.partition.feed, run.standing, run.journal
        had_begun = standing.started_at is not None or journal.memories or journal.turn
        if feed is not None and had_begun and standing.state is not State.QUARANTINED:
            emitter.run_goes_on(feed, EventKind.RUN_RECOVERED, run)

    def started(self) -> None:
        """One run fewer waits to be started."""
        self.partition.backlog.left(self)
        if self.entering:
            self.entered()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do, as far as can be told without asking the store."""
        return not (self.window or self._more or self.calls) and self.head is None

    async def _read_state(self) -> None:
        fields = await self.partition.ledger.get("state", self._prefix)
        self._state = b"" if fields is None else fields[0]

    def borrow_state(self, borrower: RunningStep) -> Draft:
        """The key's mapping, for one step at a time."""
        if self.holder is not None:
            raise RuntimeError(
                f"the step {self.holder.step!r} holds the state of the key {self.key!r}; of steps "
                "that run side by side only one can use it until it has its outcome"
            )
        assert self._state is not None
        draft = Draft(self.partition.codec, self._state)
        self.holder = borrower
        return draft

    def keep_state(self, run: Run, borrower: RunningStep) -> None:
        """Stage what a step that succeeded made of the mapping."""
        if borrower.sealed_state is not None:
            self.partition.has_key_state = True
            self._state = borrower.sealed_state
            run.put("state", self._prefix, self._state)
