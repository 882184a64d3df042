"""Control from outside: cancel, pause, resume. Requests are durable before they are answered."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.records.unfinished import UNCOUNTED
from keyrun.runtime.run.loading import recall
from keyrun.runtime.run.location import Location
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.settlement import settle
from keyrun.runtime.unwinding import Unwind
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


def _location(run: Run) -> Location:
    """Return where a run is that no actor drives."""
    if run.standing.evicted_wait is not None:
        return Location.EVICTED
    delayed = run.standing.place is None and run.submission.delay
    return Location.DELAYED if delayed else Location.QUEUED


class Control:
    """Changes how runs go on."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "KeyQueues",
        eviction: "Evictor",
        *,
        entities_may_run: Callable[[], None],
    ) -> None:
        """`entities_may_run` is called when everything was paused or resumed."""
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._eviction = eviction
        self._entities_may_run = entities_may_run

    async def cancel(self, run_id: str) -> bool:
        """See `Runtime.cancel`."""
        partition = self._partition
        # Before, one could not tell whether the run has been counted as waiting.
        await partition.counted.wait()
        run = await self._find(run_id)
        if run is None:
            return False
        if run.standing.state.terminal:
            # It was staged first, so it wins; but it has not ended before it is durable.
            await run.gate()
            return self._unchanged(run)
        decided = run.journal.undoing
        quarantined = run.standing.state is State.QUARANTINED
        if decided is not None and decided.state is not State.CANCELLED and not quarantined:
            # It has failed, and only what it did is being undone.
            return self._unchanged(run)
        run.standing.cancel_requested = True
        # Nobody knows what the code of a quarantined run would compensate.
        undoes = not quarantined and (run.undoing or bool(run.journal.undoable))
        live = self._runs.live(run.number) is not None
        if not live and undoes:
            await self._cancel_when_driven(run)
            return True
        if not live:
            self._queues.of(run.key).remove(run.number)
            self._runs.end_waking(run.number)
            settle(run, State.CANCELLED)
            # It may have been the first, and evicted: the next begins when its end is durable.
            run.queue.group = run.staged
            self._runs.move(run, _location(run))
            run.queue.wake()
            await run.gate()
            return True
        run.note("", "cancel_requested")
        run.store_standing()
        self._tell(EventKind.RUN_CANCELLING, run, run.staged)
        settled_soon = not run.current and not undoes
        if run.standing.state is State.QUARANTINED:
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
        """End a run that nobody drives as failed; if somebody does, leave it alone."""
        run = await self._find(run_id)
        if run is None:
            return
        if run.standing.state.terminal or self._runs.live(run.number):
            self._unchanged(run)
            return
        self._queues.of(run.key).remove(run.number)
        settle(run, State.FAILED, failure=failure)
        self._runs.move(run, _location(run))
        run.queue.wake()
        await run.gate()

    async def _cancel_when_driven(self, run: Run) -> None:
        """What a run at rest has done is undone before it is cancelled: its line sees to that."""
        partition, wait = self._partition, run.standing.evicted_wait
        if wait is not None:
            # In one commit with the request: it may have nothing else to wake it.
            await self._eviction.wake(run.number, run.key, run.standing.place, wait.due)
            if self._runs.live(run.number) is not None:
                await self.cancel(run.run_id)
                return
        run.note("", "cancel_requested")
        run.store_standing()
        group = run.staged
        assert group is not None
        self._tell(EventKind.RUN_CANCELLING, run, group)
        self._keep_at_rest(run, group)
        await partition.store.durable(group)
        self._queues.of(run.key).wake()
        await self._wake(run)

    def _keep_at_rest(self, run: Run, group: "Group") -> None:
        """A run that nobody drives was changed: the store does not show it before its commit."""
        self._queues.of(run.key).forget_submission(run.number)
        self._runs.keep_until_durable(run, group, _location(run))

    async def _find(self, run_id: str) -> Run | None:
        """A run to be changed, as it is in memory, or taken from the store."""
        partition = self._partition
        partition.check_open()
        number = await self._runs.number_of(run_id)
        if number is None:
            return None
        stored = None
        if self._runs.find(number) is None:
            try:
                stored = await self._at_rest(number)
            except StoreCorrupt as error:
                await self._queues.set_aside(number, error)
                with suppress(StoreCorrupt):  # else it has ended, and nobody can tell how
                    stored = await self._at_rest(number)
            if self._runs.changing(number) is not None:
                # Another operation began while this one waited.
                return await self._find(run_id)
        run = self._runs.find(number) or stored
        if run is not None and self._runs.live(number) is None:
            # Its line may have been forgotten and made again meanwhile.
            run.queue = self._queues.of(run.key)
        return run

    async def _at_rest(self, number: int) -> Run | None:
        partition = self._partition
        submission = await partition.ledger.submission(number)
        if submission is None:
            return None
        if submission.delay and self._runs.delayed(number) is None:
            # Its place may be staged only.
            await partition.store.durable()
            if await partition.ledger.submission(number) is None:
                return None
        standing = await partition.ledger.standing(number)
        if standing is None:
            standing = Standing(place=None if submission.delay else number)
        elif standing.state.terminal:
            return None
        workflow = partition.registry.find(submission.workflow, submission.version)
        run = Run(partition, self._queues.of(submission.key), submission, standing, workflow)
        # What was set aside has no place, and is not counted; nor is what sleeps.
        aside = standing.place is None and standing.state is State.QUARANTINED
        sleeps = await self._eviction.sleeps(number, submission.key, standing.place)
        run.pending = not aside and not sleeps
        if aside:
            run.counted = UNCOUNTED
        # How far it is: the status is not stored with every step. What is damaged can be ended.
        with suppress(StoreCorrupt):
            await recall(run)
        last = await partition.store.scan(
            "journal", prefix=partition.ledger.number(number), limit=1, reverse=True
        )
        if last:
            run.journal.next = int.from_bytes(last[0][0][-4:], "big") + 1
        return run

    async def pause(self, run_id: str, paused: bool) -> bool:
        """Hold a run, or let it go on. Says whether there was anything to change."""
        partition = self._partition
        run = await self._find(run_id)
        if run is None:
            return False
        if run.standing.state.terminal or run.standing.paused == paused:
            return self._unchanged(run)
        live = self._runs.live(run.number) is not None
        if not paused and run.standing.evicted_wait is not None and not live:
            # In one commit with the request: what sleeps and is not paused any more may have
            # nothing else to wake it. If it is awake first, it is held as before.
            wait, place = run.standing.evicted_wait, run.standing.place
            await self._eviction.wake(run.number, run.key, place, wait.due)
            run = await self._find(run_id)
            if run is None:
                return False
            if run.standing.state.terminal or not run.standing.paused:
                return self._unchanged(run)
        run.standing.paused = paused
        run.note("", "paused" if paused else "resumed")
        run.store_standing()
        self._tell(_PAUSES[paused], run, run.staged)
        group = run.staged
        assert group is not None
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
        """Have a run look whether it may go on. While it was held it could not let others go ahead,
        nor leave memory where its key was."""
        run.resume()
        if run.waits and run.parked == len(run.waits) and not run.held:
            self._eviction.consider(run)

    async def _wake(self, run: Run) -> None:
        """Have a run driven that may sleep."""
        wait, partition = run.standing.evicted_wait, self._partition
        if wait is not None:
            woken = await self._eviction.wake(run.number, run.key, run.standing.place, wait.due)
            await partition.store.durable(woken)

    def _tell(self, kind: EventKind, run: Run, group: "Group | None") -> None:
        feed = self._partition.feed
        if feed is not None:
            emitter.run_changed(feed, group, kind, run.submission, run.standing)

    async def pause_key(self, key: str, paused: bool) -> None:
        """Hold a key, or all keys for the empty one, or let them go on."""
        partition = self._partition
        partition.check_open()
        record = partition.ledger.name(key)
        group = partition.store.open_group()
        if paused:
            group.put("held", record, sealed("held", record))
        else:
            group.delete("held", record)
        if key:
            self._queues.of(key).paused = paused
        else:
            partition.paused = paused
            partition.stopped = paused or partition.draining
        if partition.feed is not None:
            for run in self._runs.all_live():
                if not key or run.key == key:
                    self._tell(_PAUSES[paused], run, group)
        await partition.store.durable(group)
        for run in self._runs.all_live():
            if not key or run.key == key:
                self._resume(run)
        if key:
            # It is dropped if there is nothing in it.
            self._queues.of(key).wake()
        else:
            self._queues.gate.fill()
            self._entities_may_run()
