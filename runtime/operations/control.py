"""Control: cancel, pause and resume runs and keys. A request is durable before it is answered."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.pass_end import Unwind
from keyrun.runtime.records.operation import Pause, Write
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.run.loading import recall
from keyrun.runtime.run.run import Location, Run
from keyrun.runtime.run.settlement import settle
from keyrun.runtime.values import Failure, State
from keyrun.runtime.waiting.run_end import wait_for_end
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.waiting.eviction import Evictor
    from keyrun.storage.group import Group


_PAUSES = {True: EventKind.RUN_PAUSED, False: EventKind.RUN_RESUMED}
_RUN_WRITES = {True: Write.PAUSE, False: Write.RESUME}
_KEY_WRITES = {True: Write.PAUSE_KEY, False: Write.RESUME_KEY}
_ALL_WRITES = {True: Write.PAUSE_ALL, False: Write.RESUME_ALL}


def _location(run: Run) -> Location:
    """Return where a run is that no actor drives."""
    if run.status.evicted_wait is not None:
        return Location.EVICTED
    delayed = run.status.place is None and run.submission.delay
    return Location.DELAYED if delayed else Location.QUEUED


def _request_cancel(run: Run, group: "Group") -> None:
    """Record that the run is to be cancelled. This is taken back if the block of `group` raises."""
    status = run.status
    group.when_dropped(setattr, status, "cancel_requested", status.cancel_requested)
    status.cancel_requested = True


class RunControl:
    """Cancels, pauses and resumes runs and keys."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "KeyQueues",
        eviction: "Evictor",
        *,
        entities_may_run: Callable[[], None],
    ) -> None:
        """`entities_may_run` is called when the runtime was paused or resumed."""
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._eviction = eviction
        self._entities_may_run = entities_may_run

    async def cancel(self, run_id: str) -> bool:
        """See `Runtime.cancel`."""
        partition = self._partition
        # Before that, it is unknown whether the run has been counted as waiting to be started.
        await partition.counted.wait()
        run = await self._find(run_id)
        if run is None:
            return False
        if run.status.state.terminal:
            # The end was staged first, so it takes precedence when it is durable.
            await run.gate()
            return self._unchanged(run)
        decided = run.journal.undoing
        # An evicted run whose workflow is not registered is quarantined, too.
        missing = run.workflow is None and not partition.operator
        quarantined = run.status.state is State.QUARANTINED or missing
        if decided is not None and decided.state is not State.CANCELLED and not quarantined:
            # The run has failed, and only its compensations run.
            return self._unchanged(run)
        # It is unknown what the code of a quarantined run would compensate.
        undoes = not quarantined and (run.undoing or bool(run.journal.undoable))
        live = self._runs.live(run.number) is not None
        if not live and undoes:
            await self._cancel_when_driven(run)
            return True
        if not live:
            self._settle_at_rest(run, State.CANCELLED)
            self._runs.end_waking(run.number)
            # If it was an evicted head, the next run begins when this end is durable.
            run.queue.group = run.staged
            run.queue.wake()
            await run.gate()
            return True
        self._stage_request(run)
        settled_soon = not run.current and not undoes
        if run.status.state is State.QUARANTINED:
            settle(run, State.CANCELLED)
            self._queues.of(run.key).dismiss(run)
        elif not run.shielded and not run.undoing:
            run.unwind(Unwind.CANCEL)
        run.resume()
        await partition.store.durable(run.staged)
        if settled_soon and self._runs.find(run.number) is run:
            await wait_for_end(self._runs, run.number)
        return True

    async def fail_at_rest(self, run_id: str, failure: Failure) -> None:
        """Fail a run that no actor drives. Do nothing if an actor drives it."""
        run = await self._find(run_id)
        if run is None:
            return
        if run.status.state.terminal or self._runs.live(run.number):
            self._unchanged(run)
            return
        self._settle_at_rest(run, State.FAILED, failure)
        run.queue.wake()
        await run.gate()

    def _settle_at_rest(self, run: Run, state: State, failure: Failure | None = None) -> None:
        """Stage the end of a run that no actor drives."""
        with self._partition.together() as group:
            if state is State.CANCELLED:
                _request_cancel(run, group)
            self._partition.applied(Write.CANCEL, True, run.submission)
            settle(run, state, failure=failure)
            # From here on, another operation on the run finds that it has ended.
            self._runs.move(run, _location(run))
        self._queues.of(run.key).remove(run.number)

    async def _cancel_when_driven(self, run: Run) -> None:
        """Stage the request to cancel a run at rest that has steps to compensate. Its key's actor
        compensates them."""
        partition, wait = self._partition, run.status.evicted_wait
        if wait is not None:
            # In one commit with the request, because nothing else may wake the run.
            await self._eviction.wake(run.number, run.key, run.status.place, wait.due)
            if self._runs.live(run.number) is not None:
                await self.cancel(run.run_id)
                return
        with partition.together() as group:
            self._stage_request(run)
            self._keep_at_rest(run, group)
        await partition.store.durable(group)
        self._queues.of(run.key).wake()
        await self._wake(run)

    def _stage_request(self, run: Run) -> None:
        """Stage the request to cancel a run."""
        with self._partition.together() as group:
            _request_cancel(run, group)
            run.note("", "cancel_requested")
            run.store_status()
            self._partition.applied(Write.CANCEL, True, run.submission)
            self._emit(EventKind.RUN_CANCELLING, run, group)

    def _keep_at_rest(self, run: Run, group: "Group") -> None:
        """Keep a changed run that no actor drives in the run table until the change is durable."""
        self._queues.of(run.key).forget_submission(run.number)
        self._runs.keep_until_durable(run, group, _location(run))

    async def _find(self, run_id: str) -> Run | None:
        """Return the run to change, from memory or loaded from the store. None if there is no such
        run, or it has ended."""
        partition = self._partition
        partition.check_caller()
        number = await self._runs.number_of(run_id)
        if number is None:
            return None
        stored = None
        if self._runs.find(number) is None:
            try:
                stored = await self._load(number)
            except StoreCorrupt as error:
                await self._queues.set_aside(number, error)
                with suppress(StoreCorrupt):  # otherwise the run has ended, and its end is unknown
                    stored = await self._load(number)
            if self._runs.changing(number) is not None:
                # Another operation began while this one waited.
                return await self._find(run_id)
        run = self._runs.find(number) or stored
        if run is not None and self._runs.live(number) is None:
            # Its queue may have been dropped and made again meanwhile.
            run.queue = self._queues.of(run.key)
        return run

    async def _load(self, number: int) -> Run | None:
        partition = self._partition
        submission = await partition.ledger.submission(number)
        if submission is None:
            return None
        if submission.delay and self._runs.delayed(number) is None:
            # The place of the run may be staged only.
            await partition.store.durable()
            if await partition.ledger.submission(number) is None:
                return None
        status = await partition.ledger.status(number)
        if status is None:
            status = StatusRecord(place=None if submission.delay else number)
        elif status.state.terminal:
            return None
        workflow = partition.registry.find(submission.workflow, submission.version)
        run = Run(partition, self._queues.of(submission.key), submission, status, workflow)
        run.counted = status.counted()
        # A run that was set aside has no place and is not counted. An evicted run is not pending.
        aside = status.place is None and status.state is State.QUARANTINED
        sleeps = await self._eviction.is_evicted(number, submission.key, status.place)
        run.pending = not aside and not sleeps and not partition.operator
        # The status is not stored with every step. A run with a damaged journal can be ended.
        with suppress(StoreCorrupt):
            await recall(run)
        last = await partition.store.scan(
            "journal", prefix=partition.ledger.number(number), limit=1, reverse=True
        )
        if last:
            run.journal.next = int.from_bytes(last[0][0][-4:], "big") + 1
        return run

    async def pause(self, run_id: str, paused: bool) -> bool:
        """Pause or resume a run. Return whether this changed anything."""
        partition = self._partition
        run = await self._find(run_id)
        if run is None:
            return False
        if run.status.state.terminal or run.status.paused == paused:
            return self._unchanged(run)
        live = self._runs.live(run.number) is not None
        if not paused and run.status.evicted_wait is not None and not live:
            # In one commit with the request, because nothing else may wake the run. If the run is
            # awake before the request is durable, it is still paused.
            wait, place = run.status.evicted_wait, run.status.place
            await self._eviction.wake(run.number, run.key, place, wait.due)
            run = await self._find(run_id)
            if run is None:
                return False
            if run.status.state.terminal or not run.status.paused:
                return self._unchanged(run)
        with partition.together() as group:
            group.when_dropped(setattr, run.status, "paused", not paused)
            group.when_dropped(setattr, run.status, "pause", run.status.pause)
            run.status.paused = paused
            run.status.pause = Pause(partition.wall(), partition.caller()) if paused else None
            run.note("", "paused" if paused else "resumed")
            run.store_status()
            partition.applied(_RUN_WRITES[paused], True, run.submission)
            self._emit(_PAUSES[paused], run, group)
            if self._runs.live(run.number) is None:
                self._keep_at_rest(run, group)
        await partition.store.durable(group)
        # The key's actor may have loaded the run during the commit, as another object.
        live_now = self._runs.live(run.number)
        if live_now is None:
            run.queue = self._queues.of(run.key)
        self._resume(live_now or run)
        if not paused:
            await self._wake(run)
        return True

    def _unchanged(self, run: Run) -> bool:
        """Answer that there is nothing to change. A key queue that was made to find that out is
        dropped when its actor finds nothing to do."""
        queue = self._queues.get(run.key)
        if queue is not None:
            queue.wake()
        return False

    def _resume(self, run: Run) -> None:
        """Let a run check whether it may continue. While it was paused it could not yield its key
        or be evicted."""
        run.resume()
        if run.waits and run.waiting_branches == len(run.waits) and not run.is_held():
            self._eviction.consider(run)

    async def _wake(self, run: Run) -> None:
        """Wake a run that may be evicted."""
        wait, partition = run.status.evicted_wait, self._partition
        if wait is not None:
            woken = await self._eviction.wake(run.number, run.key, run.status.place, wait.due)
            await partition.store.durable(woken)

    def _emit(self, kind: EventKind, run: Run, group: "Group | None") -> None:
        feed = self._partition.feed
        if feed is not None:
            emitter.run_changed(feed, group, kind, run.submission, run.status)

    async def pause_key(self, key: str, paused: bool) -> None:
        """Pause or resume a key. The empty key stands for all keys."""
        partition = self._partition
        partition.check_caller()
        record = partition.ledger.name(key)
        before = self._is_paused(key)
        with partition.together() as group:
            if not paused:
                group.delete("held", record)
            elif not before:
                since = partition.wall(), partition.caller()
                group.put("held", record, sealed("held", record, *since))
            partition.applied((_KEY_WRITES if key else _ALL_WRITES)[paused], None)
            group.when_dropped(self._set_paused, key, before)
            self._set_paused(key, paused)
            if partition.feed is not None:
                for run in self._runs.all_live():
                    if not key or run.key == key:
                        self._emit(_PAUSES[paused], run, group)
        await partition.store.durable(group)
        for run in self._runs.all_live():
            if not key or run.key == key:
                self._resume(run)
        if key:
            # Its actor drops an empty queue.
            self._queues.of(key).wake()
        else:
            self._queues.gate.fill()
            self._entities_may_run()

    def _is_paused(self, key: str) -> bool:
        return self._queues.of(key).paused if key else self._partition.paused

    def _set_paused(self, key: str, paused: bool) -> None:
        partition = self._partition
        if key:
            self._queues.of(key).paused = paused
        else:
            partition.paused = paused
            partition.stopped = paused or partition.draining
