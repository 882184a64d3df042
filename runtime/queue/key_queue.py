"""The queue of one key: its runs in order, of which only the first is driven.

The places in the store give the order. A small window of it is in memory, and the rest is read when
it is needed. A run that was evicted keeps its place and is not in the window. If it holds its key
while it waits, the queue knows its number (`evicted_head`).

The queue also has the state of the key, which one step at a time may change.
"""

from bisect import bisect
from typing import TYPE_CHECKING, Protocol

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.queue.resume_order import run_ahead
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.records.tables import NUMBER, Evicted, at_place
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.run.loading import Stored, assemble, load
from keyrun.runtime.run.quarantine import quarantine_unregistered, try_again
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.running_step import RunningStep
from keyrun.runtime.values import Priority, State
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.queue.backpressure import Pending
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.storage.group import Group

_NORMAL = Priority.NORMAL  # looking it up takes as long as a call

SMALL_STATE = 256
"""Bytes of a key's state that may stay in memory when there is nothing to do."""


class QueuedCall(Protocol):
    """A call that waits in the queue of its key until the runs before it have ended."""

    has_slot: bool
    """Whether the call holds a slot."""

    @property
    def name(self) -> str:
        """Return the names of the entity and of the method."""

    @property
    def number(self) -> int:
        """Return the admission number that comes next: runs with a smaller place go first."""

    @property
    def effects(self) -> bool:
        """Return whether the method may do more than change its state and return an answer."""

    @property
    def from_key(self) -> bool:
        """Return whether code that holds a key itself, a step or a method, made the call."""

    async def execute(self) -> bool:
        """Run the method. Return whether the actor can continue in its cancel scope."""

    def crash(self, error: BaseException) -> None:
        """Refuse the call because its execution raised `error`, which ends the actor."""

    def abandon(self) -> None:
        """Withdraw the call and let it fail, because the runtime closes."""


class KeyQueue:
    """The queue of one key."""

    __slots__ = (
        "_last",
        "_listing_ended",
        "_more",
        "_placed_since_read",
        "_prefix",
        "_queues",
        "_rank",
        "_state",
        "_untouched",
        "awake",
        "calls",
        "entering",
        "evicted_head",
        "group",
        "head",
        "holder",
        "key",
        "partition",
        "paused",
        "pending",
        "queued",
        "recovered",
        "window",
    )

    def __init__(self, queues: "KeyQueues", key: str, *, known: bool) -> None:
        self._queues = queues
        self.partition = queues.partition
        self.key = key
        self._prefix = queues.partition.ledger.key_prefix(key)
        self.window: list[tuple[int, int, Submission | None]] = []
        """Place, number, and the submission if it is still in memory."""
        self._last = 0
        """The last place that came into the window."""
        self._more = not known
        """Whether the store may have more runs of this key than the window."""
        self._rank = _NORMAL
        """The priority of the first run that was found in the store."""
        self._listing_ended = False
        """Whether the index has more of this key than its reading at the open brought."""
        self._placed_since_read = False
        """Whether a run got a place outside of the window since the window was last read."""
        self.group: Group | None = None
        """The group that ends the last run. The next run starts no step before it is durable."""
        self.evicted_head: int | None = None
        """The run that was evicted while it waits and still holds the key."""
        self._untouched = not known
        """Whether no run was driven since the store was opened."""
        self.recovered = False
        """Whether its first run was there when the store was opened, and no event said yet that it
        resumes."""
        self.head: Run | None = None
        self.awake = False
        """Whether the key's actor looks at the queue."""
        self.queued = False
        """Whether it waits at the concurrency gate."""
        self.entering = False
        """Whether the gate has admitted the key, and its first run has not begun."""
        self.paused = False
        self.pending = 0
        """Runs and calls that were accepted and have not started."""
        self._state: bytes | None = None
        """The key's state as it is stored, empty if there is none; None if it was not read."""
        self.holder: RunningStep | None = None
        """The step that uses the key's state."""
        self.calls: list[QueuedCall] | None = None
        """Calls of entities that have not begun, in order. They are in memory only."""

    # Places.

    def place(self, place: int) -> bytes:
        """Return the record key of a place in this queue."""
        return self._prefix + NUMBER.pack(place)

    def entity(self, encoded: bytes) -> bytes:
        """Return the record key of the state of an entity under this key."""
        return self._prefix + encoded

    def admit(self, submission: Submission) -> None:
        """Add a run whose place, which is its number, is durable."""
        self._append(submission.number, submission.number, submission)

    def admit_stored(self, place: int, number: int) -> None:
        """Add a run of the store that got a place again, durably."""
        self._append(place, number, None)

    def _append(self, place: int, number: int, submission: Submission | None) -> None:
        if self._more or len(self.window) >= self._queues.window:
            self._more = self._placed_since_read = True
        elif place > self._last:
            # Otherwise it was read from the store between its commit and this call.
            self._last = place
            self.window.append((place, number, submission))
            if submission is not None:
                submission.at_hand = True
        if self.head is not None and self.head.waiting_branches:
            self.partition.services.eviction.overtake(self.head)
        self.wake()

    def found(self, place: int, number: int, priority: Priority) -> None:
        """Add a place that the index has, which is read in order at the open. A queue whose window
        is full reads the rest itself."""
        if (
            len(self.window) < self._queues.window
            and place > self._last
            and not self._listing_ended
        ):
            if not self.window:
                self._rank = priority
            self._last = place
            self.window.append((place, number, None))
        else:
            self._listing_ended = True

    def listed(self) -> None:
        """Record that the index has no more of this key than was found."""
        self._more = self._more and (self._listing_ended or self._placed_since_read)

    def wake_up(self, place: int, number: int) -> None:
        """Put a run back that was evicted and has something to do, durably. The run that held the
        key comes first, others where their place is."""
        known = any(other == number for _, other, _ in self.window)
        if self.evicted_head == number:
            self.evicted_head = None
            if not known:
                self.window.insert(0, (place, number, None))
        elif not known and not (self._more and place > self._last):
            at = bisect(self.window, place, key=lambda item: item[0])
            self.window.insert(at, (place, number, None))
            self._last = max(self._last, place)
        self.wake()

    def _bring_forward(self, place: int, number: int) -> None:
        """Let a run resume first after a restart, whatever comes before it."""
        if place > self._last:
            self._more = self._listing_ended = True
            if not self.partition.recovered:
                self._queues.backlog.count_early(self, self.place(place))
        self.window = [item for item in self.window if item[1] != number]
        self.window.insert(0, (place, number, None))

    def forget_runs(self) -> None:
        """Drop all runs from memory. They are read from the store again when they are needed."""
        for _, _, submission in self.window:
            if submission is not None:
                submission.at_hand = False
        self.window = []
        self._last = 0
        self._more = self._listing_ended = True
        self.head = self.holder = self.group = self._state = None

    def first_priority(self) -> Priority:
        """Return the priority of the first run, as far as it is in memory."""
        submission = self.window[0][2] if self.window else None
        return self._rank if submission is None else submission.priority

    def remove(self, number: int) -> None:
        """Remove a run that has no place here any more."""
        self.forget_submission(number)
        if self.evicted_head == number:
            self.evicted_head = None
        self.window = [item for item in self.window if item[1] != number]

    def forget_submission(self, number: int) -> None:
        """Read a run from the store when it is driven, because it was changed."""
        for at, (place, other, submission) in enumerate(self.window):
            if other == number:
                self.window[at] = (place, number, None)
                if submission is not None:
                    submission.at_hand = False

    @property
    def unread(self) -> bool:
        """Return whether only the store knows which run is the first."""
        return self._more and not self.window

    async def read_window(self) -> None:
        """Read which runs come next."""
        partition, size = self.partition, self._queues.window
        ledger, store = partition.ledger, partition.store
        self._placed_since_read = False
        self._listing_ended = True
        if self.group is not None:
            # The index must not show runs whose end is only staged.
            await self.group.wait()
        if self._queues.runs.has_unsaved(self.key):
            # Nor evicted runs whose end or wake-up is only staged.
            await store.durable()
        while not self.window:
            start = self.place(self._last + 1) if self._last else b""
            rows = await store.scan("queue", prefix=self._prefix, start=start, limit=size)
            self._more = self._placed_since_read or len(rows) == size
            for key, raw in rows:
                place = self._last = ledger.split_place(key)[1]
                number, priority, evicted, _ = at_place(key, raw, place)
                if evicted is not Evicted.NO:
                    if evicted is Evicted.HOLDS:
                        self.evicted_head = number
                    continue
                if not partition.recovered and place < partition.opened_at:
                    self._queues.backlog.count_early(self, key)
                if not self.window:
                    self._rank = priority
                self.window.append((place, number, None))
            if len(rows) < size:
                return

    # The first run.

    def reload(self, number: int) -> None:
        """Drive the first run from the store, because it was changed there."""
        if self.head is not None and self.head.number == number:
            self._queues.runs.remove(self.head)
            if not self.head.pending:
                self._queues.backlog.enter(self)
            self.head = None
        self.forget_submission(number)
        self.wake()

    @property
    def others(self) -> bool:
        """Return whether something else of the key could run while the first run waits."""
        return len(self.window) > 1 or self._more or bool(self.calls)

    def evict_head(self, run: Run) -> None:
        """Record that the first run was evicted while it waits. It still holds the key."""
        self.remove_head(run)
        self.evicted_head = run.number

    def drop(self, number: int) -> None:
        """Remove a run that held the key and was removed."""
        if self.head is not None and self.head.number == number:
            self.head = None
        self.remove(number)
        self.wake()

    def remove_head(self, run: Run) -> None:
        """Remove the first run, which has ended or was evicted."""
        self.group = run.staged
        self.head = None
        if self.window[0][1] == run.number:
            del self.window[0]
        else:
            # Runs with earlier places were woken since.
            self.remove(run.number)

    def dismiss(self, run: Run) -> None:
        """Remove the first run if it is `run`, which was settled from outside."""
        if self.head is run:
            self.remove_head(run)
            self.wake()

    def take_fresh(self) -> Run | None:
        """Make the first run ready to be driven if everything that it needs is in memory."""
        if not self.window or self._untouched:
            return None
        partition = self.partition
        place, _, submission = self.window[0]
        if submission is None or (self._state is None and partition.has_key_state):
            return None
        workflow = partition.registry.find(submission.workflow, submission.version)
        if workflow is None:
            return None
        run = Run(partition, self, submission, StatusRecord(place=place), workflow)
        run.staged = self.group
        self._queues.runs.take(run)
        self.head = run
        if self._state is None:
            self._state = b""
        return run

    async def load_next(self) -> Run | None:
        """Make the first run ready to be driven, and read its records from the store."""
        partition, queues = self.partition, self._queues
        while True:
            if self.unread:
                await self.read_window()
            if not self.window or self.evicted_head is not None:
                return None
            place, number, _ = self.window[0]
            try:
                await queues.runs.settled(number)
                run = await load(partition, self, place, number)
            except StoreCorrupt as error:
                await queues.set_aside(number, error, key=self.key, place=place)
                self.remove(number)
                continue
            if run is None:
                self.remove(number)
                continue
            if self._untouched and run.status.evicted_wait is not None:
                ahead = await run_ahead(run, place)
                if ahead is not None:
                    if ahead.evicted:
                        self.evicted_head = ahead.number
                    else:
                        self._bring_forward(ahead.place, ahead.number)
                    continue
            untouched = self._untouched
            woken = self._take(run)
            if untouched:
                self.emit_recovered(run)
            if run.workflow is None:
                quarantine_unregistered(run)
            if self._state is None:
                if partition.has_key_state:
                    fields = await partition.ledger.get("state", self._prefix)
                    self._state = b"" if fields is None else fields[0]
                else:
                    self._state = b""
            if run.status.started_at is not None and not woken:
                run.begin()
            return run

    @property
    def unloaded(self) -> bool:
        """Return whether the first run is known and was not loaded since the open, although nothing
        prevents that."""
        return self._untouched and self.head is None and bool(self.window) and not self.calls

    def take_stored(self, stored: Stored) -> None:
        """Take the first run as it was read, if it is still the first. The queue was woken, and its
        actor has not begun."""
        place, number, _ = self.window[0]
        if stored.number != number or self.head is not None:
            return
        if not self._queues.runs.is_settled(number):
            return
        kept = stored.state
        state = b"" if kept is None else unseal("state", self._prefix, kept)[0]
        run = assemble(self.partition, self, place, stored)
        if run is None:
            self.remove(number)
        elif run.workflow is not None and run.status.evicted_wait is None:
            # Otherwise its actor quarantines it, or decides whether another run resumes first.
            self._take(run)
            self._state = state
            if run.status.started_at is not None:
                run.begin()
            self.recovered = True

    def _take(self, run: Run) -> bool:
        """Make a loaded run the first one. Return whether it was woken."""
        partition = self.partition
        self.forget_submission(run.number)
        self._queues.runs.take(run)
        self.head = run
        run.staged = self.group
        status = run.status
        woken, status.evicted_wait = status.evicted_wait is not None, None
        if status.state is State.WAITING:
            # The run is driven now, and sets this state again if it has to wait.
            status.state, status.waiting_on = State.RUNNING, None
        # Only the first run can have been driven when the process was killed.
        run.careful = self._untouched and partition.unclean
        if woken and not self._untouched and partition.feed is not None:
            emitter.run_resumed(partition.feed, EventKind.RUN_RESUMED, run)
        self._untouched = False
        if run.status.state is State.QUARANTINED and run.workflow is not None:
            try_again(run)
        return woken

    def emit_recovered(self, run: Run) -> None:
        """Emit that the first run resumes after a restart, if it had begun."""
        self.recovered = False
        feed, status, journal = self.partition.feed, run.status, run.journal
        had_begun = status.started_at is not None or journal.memories or journal.turn
        if feed is not None and had_begun and status.state is not State.QUARANTINED:
            emitter.run_resumed(feed, EventKind.RUN_RECOVERED, run)

    # The actor and the concurrency gate.

    def wake(self) -> None:
        """Let the key's actor look at the queue, when the concurrency gate admits the key."""
        if self.awake or self.queued or self.partition.draining:
            return
        if self.evicted_head is not None:
            self.release_memory()
            return
        gate = self._queues.gate
        # Calls alone pass the gate: their callers are in memory anyway.
        enters = self.head is None and not (self.calls and len(self.calls) == self.pending)
        if enters and gate.is_closed() and self.pending:
            gate.enqueue(self, self.first_priority())
            return
        self._queues.wake_actor(self.key, self)
        # Afterwards, so that an internal error in this call does not prevent the next wake-up.
        self.awake = True
        if enters:
            self.entering = True
            gate.under_way += 1

    def entered(self) -> None:
        """Record that the first run has begun, or that there is none."""
        if self.entering:
            self.entering = False
            self._queues.gate.leave()

    def started(self, pending: "Pending | None" = None) -> None:
        """Record that one run or call fewer waits to be started: `pending`, or another one that
        was removed."""
        self._queues.backlog.leave(self, pending)
        if self.entering:
            self.entered()

    def actor_left(self) -> None:
        """Record that the actor does not look at the queue any more."""
        self.awake = False
        if self.entering:
            self.entered()
        if self.evicted_head is not None:
            self.release_memory()
        if self.partition.draining and self.head is not None:
            self._queues.runs.remove(self.head)
            self.head = None

    def is_idle(self) -> bool:
        """Return whether there is nothing to do, as far as memory knows."""
        return not (self.window or self._more or self.calls) and self.head is None

    # Memory.

    def release_memory(self) -> None:
        """Keep only the name of the key while the run that holds it is evicted."""
        if self.evicted_head is not None and not self.awake:
            self._queues.keep_name(self, self.evicted_head)

    def reusable(self) -> bool:
        """Return whether the queue is empty and its actor has left it. Large state is dropped."""
        if self._state and len(self._state) > SMALL_STATE:
            self._state = None
        return self.head is None and self.holder is None and not self._more

    def unload(self) -> bool:
        """Drop the runs of a queue from memory, unless that would lose something. Return whether
        they were dropped."""
        if self.head is not None or self.paused or self.calls:
            return False
        if not (self.group is None or self.group.durable):
            return False
        self.forget_runs()
        return True

    def revive(self, pending: int) -> None:
        """Take over a key of which only the name was known, because it waits at the gate. Its runs
        are in the store, also where the index is still being read."""
        self.pending = pending
        self.queued = True
        self._listing_ended = True

    def revive_evicted(self, number: int, pending: int) -> None:
        """Take over a key of which only the name was known, because `number` was evicted and holds
        it."""
        self.evicted_head = number
        self.pending = pending
        self._listing_ended = True
        # A run that was driven when the process was killed was not evicted.
        self._untouched = False

    # The state of the key.

    def borrow_state(self, borrower: RunningStep) -> Draft:
        """Lend the state of the key to one step."""
        if self.holder is not None:
            raise from_user(
                RuntimeError(
                    f"the step {self.holder.step!r} uses the state of the key {self.key!r}; of "
                    "several steps that run at once, only one can use it until it has its outcome"
                )
            )
        assert self._state is not None
        draft = Draft(self.partition.codec, self._state)
        self.holder = borrower
        return draft

    def keep_state(self, run: Run, borrower: RunningStep) -> None:
        """Stage the state of the key as a step that succeeded has changed it."""
        if borrower.sealed_state is not None:
            self.partition.has_key_state = True
            self._state = borrower.sealed_state
            run.put("state", self._prefix, self._state)
