"""Redrive, forget and release: the operations on dead letters and quarantined runs."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import attrs

from keyrun.runtime.errors import RunEnded, UnknownRun
from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.operations.control import RunControl
from keyrun.runtime.operations.damaged_runs import DamagedRuns, check_submitted
from keyrun.runtime.records.journal_entry import Redriven, Undo, decode
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import OF_GROUP, SALVAGED, StatusRecord, Submission
from keyrun.runtime.records.tables import placed, sealed
from keyrun.runtime.runs import Change
from keyrun.runtime.texts import brief
from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.children.child_runs import Children
    from keyrun.runtime.queue.instance_limits import Instances
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.queue.outbox import Outbox
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.values import RunStatus
    from keyrun.runtime.waiting.eviction import Evictor
    from keyrun.runtime.waiting.signals import Signals
    from keyrun.storage.group import Group


_OF_RUN = ("journal", "memo", "begun", "reports", "signals", "sent", "children", "audited")
"""Tables whose record keys begin with the number of a run."""


class QuarantinedKeys(Protocol):
    """Knows the keys that are quarantined because their actor crashed."""

    def quarantined_run(self, key: str) -> "tuple[bool, int | None]":
        """Return whether a key is quarantined, and the run at its head when it crashed."""

    def release(self, key: str) -> bool:
        """Release a key. Return whether it was quarantined."""


class RetentionCount(Protocol):
    """Counts the ended runs that retention keeps."""

    async def counts(self, number: int, status: StatusRecord) -> bool:
        """Return whether an ended run counts."""

    def removed(self) -> None:
        """Count one run fewer."""


class MemberRemoval(Protocol):
    """The groups, which keep the end of a member whose run is forgotten."""

    async def prepare_removal(
        self, number: int, submission: Submission, status: StatusRecord
    ) -> "Callable[[Group], None] | None":
        """Return a function that stages the removal of a member, or None if the run is not a
        member."""


class Redrive:
    """Redrives, releases and forgets runs."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "KeyQueues",
        *,
        control: RunControl,
        eviction: "Evictor",
        damaged: DamagedRuns,
        signals: "Signals",
        children: "Children",
        outbox: "Outbox",
        instances: "Instances | None",
        supervisor: QuarantinedKeys,
        retention: RetentionCount,
        groups: "Callable[[], MemberRemoval]",
        status: "Callable[[int], Awaitable[RunStatus | None]]",
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._control = control
        self._eviction = eviction
        self._damaged = damaged
        self._signals = signals
        self._children = children
        self._outbox = outbox
        self._instances = instances
        self._supervisor = supervisor
        self._retention = retention
        self._groups = groups
        self._status = status

    async def redrive(self, run_id: str) -> int:
        """Run a failed or quarantined run again, with the code that is registered now. Return its
        generation.

        A failed run gets a place at the end of its key's queue, a fresh deadline and fresh budgets,
        and resumes at the step that failed. A quarantined run keeps its place."""
        generation, group = await self.stage_redrive(run_id)
        if group is not None:
            await self._partition.store.durable(group)
        return generation

    async def stage_redrive(
        self,
        run_id: str,
        *,
        states: Collection[State] = (State.FAILED, State.QUARANTINED),
    ) -> "tuple[int, Group | None]":
        """Stage what `redrive` does to a run that is in one of `states`. There is no group if the
        run was redriven before this returns."""
        await self._outbox.converted()
        number, submission, status = await self._find(run_id)
        if status.state in states:
            check_submitted(submission)
        if status.state is State.QUARANTINED:
            if status.place is None:
                return await self._requeue(submission, status), None
            if status.evicted_wait is None:
                return status.generation, await self._retry_in_place(submission, status)
            self._registered_version(submission)  # raises if there is none
            due = status.evicted_wait.due
            await self._eviction.wake(number, submission.key, status.place, due)
            if self._runs.live(number) is None and self._runs.changing(number) is None:
                return status.generation, await self._retry_in_place(submission, status)
            return await self.stage_redrive(run_id, states=states)
        held, held_run = self._supervisor.quarantined_run(submission.key)
        if held and held_run == number and not status.state.terminal:
            self._supervisor.release(submission.key)
            return status.generation, None
        if held and not status.state.terminal:
            raise RunEnded(
                f"the run {run_id!r} waits for its key, which is quarantined; release the key: "
                f"release_key({submission.key!r})",
                run_id=run_id,
                key=submission.key,
            )
        ledger = self._partition.ledger
        if status.state is State.FAILED and await self._was_undone(number):
            raise RunEnded(
                f"the run {run_id!r} was compensated, so it cannot be redriven; submit it again "
                "under another id",
                run_id=run_id,
                key=submission.key,
            )
        journal_key = ledger.entry(number, await self._next_entry(number))
        counted = await self._retention.counts(number, status)
        if status.state not in states:
            raise RunEnded(
                f"the run {run_id!r} is {status.state}; only failed and quarantined runs can be "
                "redriven",
                run_id=run_id,
                key=submission.key,
            )
        version = self._registered_version(submission)
        generation = status.generation + 1
        dead = await self._is_dead_letter(number)
        place = self._partition.take_number()
        assert status.ended_at is not None
        with self._partition.together() as group:
            group.delete("ended", ledger.timed(status.ended_at, number))
            group.delete("dead", ledger.number(number))
            if dead:
                self._partition.counts.died(submission, -1)
            fresh = StatusRecord(
                generation=generation,
                place=place,
                steps_done=status.steps_done,
                fingerprint=status.fingerprint,
                patches=status.patches,
            )
            self._put_status(group, number, fresh)
            redriven = Redriven(self._partition.wall(), generation, status)
            group.put("journal", journal_key, sealed("journal", journal_key, *redriven.encode()))
            queued = ledger.place(submission.key, place)
            group.put("queue", queued, sealed("queue", queued, *placed(submission)))
            submission = self._put_version(group, submission, version)
            self._partition.counts.enter(submission, fresh)
            self._enter(group, submission.key)
            self._applied(generation, submission)
            self._runs.begin_change(number, Change.REDRIVE, group)
            self._emit(group, submission, fresh)
            group.when_durable(self._admit, submission.key, place, number)
        if counted:
            self._retention.removed()
        return generation, group

    def _enter(self, group: "Group", key: str) -> None:
        """Count one more run of a key that waits to be started, if `group` is staged."""
        self._queues.enter(key)
        group.when_dropped(self._queues.leave, key)

    def _admit(self, key: str, place: int, number: int) -> None:
        self._queues.of(key).admit_stored(place, number)

    async def _requeue(self, submission: Submission, status: StatusRecord) -> int:
        """Give a run that was set aside a place at the end of its key's queue."""
        number, version = submission.number, self._registered_version(submission)
        async with self._damaged.lock:
            fresh = await self._damaged.readmit(submission, status)
            known = await self._partition.ledger.status(number)
            if known is None or known.state is not State.QUARANTINED:
                # Another redrive was faster.
                return fresh.generation
            place = fresh.place
            assert place is not None
            with self._partition.together() as group:
                self._partition.counts.leave(submission, known)
                submission = self._put_version(group, submission, version)
                self._partition.counts.enter(submission, fresh)
                self._put_status(group, number, fresh)
                queued = self._partition.ledger.place(submission.key, place)
                group.put("queue", queued, sealed("queue", queued, *placed(submission)))
                self._enter(group, submission.key)
                self._applied(fresh.generation, submission)
                self._runs.begin_change(number, Change.REDRIVE, group)
                group.when_durable(self._admit, submission.key, place, number)
                self._emit(group, submission, fresh)
            await self._partition.store.durable(group)
            return fresh.generation

    def _applied(self, generation: int, submission: Submission) -> None:
        """Stage the answer of the operation that redrives a run, or releases its key."""
        self._partition.applied(Write.REDRIVE, generation, submission)
        self._partition.applied(Write.RELEASE_KEY, True, submission)

    def _emit(self, group: "Group", submission: Submission, status: StatusRecord) -> None:
        if self._partition.feed is not None:
            kind = EventKind.RUN_REDRIVEN
            emitter.run_changed(self._partition.feed, group, kind, submission, status)

    async def _retry_in_place(self, submission: Submission, status: StatusRecord) -> "Group":
        """Stage that a quarantined run which holds its key is tried again. The run in memory stays
        quarantined until that is durable, so that its actor does not drive it."""
        version, number = self._registered_version(submission), submission.number
        again = attrs.evolve(status)
        again.lift_quarantine()
        stored = await self._stored(number)
        with self._partition.together() as group:
            self._put_status(group, number, again)
            self._partition.counts.leave(submission, stored)
            submission = self._put_version(group, submission, version)
            self._partition.counts.enter(submission, again)
            self._applied(status.generation, submission)
            self._runs.begin_change(number, Change.REDRIVE, group)
            group.when_durable(self._reload, submission.key, number)
            self._emit(group, submission, again)
        return group

    async def _stored(self, number: int) -> StatusRecord:
        """Return the stored status of a run. `current_status` may say that a run is quarantined
        whose stored status says something else."""
        return await self._partition.ledger.status(number) or StatusRecord()

    async def _is_dead_letter(self, number: int) -> bool:
        ledger = self._partition.ledger
        return await self._partition.store.get("dead", ledger.number(number)) is not None

    def _reload(self, key: str, number: int) -> None:
        self._queues.of(key).reload(number)

    def _registered_version(self, submission: Submission) -> int:
        """Return the version of the run, or the latest version if that one is not registered."""
        if self._partition.registry.find(submission.workflow, submission.version) is not None:
            return submission.version
        if self._partition.operator:
            # The next open knows whether it has the version.
            return submission.version
        return self._partition.registry.latest(submission.workflow).version

    def _put_version(self, group: "Group", submission: Submission, version: int) -> Submission:
        """Return the submission with this version, and stage it if the version differs."""
        if version == submission.version:
            return submission
        record = self._partition.ledger.number(submission.number)
        changed = attrs.evolve(submission, version=version)
        group.put("runs", record, sealed("runs", record, *changed.fields()))
        return changed

    def _put_status(self, group: "Group", number: int, status: StatusRecord) -> None:
        record = self._partition.ledger.number(number)
        group.put("status", record, sealed("status", record, *status.fields()))

    async def _find(self, run_id: str) -> tuple[int, Submission, StatusRecord]:
        """Return a run that is to be redriven or removed. If it has ended or is quarantined, all
        its records are durable: an end that is only staged has not happened yet."""
        while True:
            number = await self._runs.number_of(run_id)
            run = None if number is None else self._runs.find(number)
            if number is not None and self._signals.staged(number):
                await self._partition.store.durable()
                continue
            if run is None or run.staged is None or run.staged.durable:
                break
            ended = run.status.state.terminal or run.status.state is State.QUARANTINED
            if not ended and self._runs.live(run.number) is run:
                break
            await self._partition.store.durable(run.staged)
        submission: Submission | None = None
        status: StatusRecord | None = None
        if number is not None:
            try:
                submission = await self._partition.ledger.submission(number)
                status = (
                    run.status
                    if run is not None
                    else await self._partition.ledger.current_status(number)
                )
            except StoreCorrupt as error:
                submission, status = await self._damaged.remains(number, error)
                if self._runs.changing(number) is not None:
                    return await self._find(run_id)
        if number is None or submission is None:
            raise UnknownRun(
                f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id
            )
        return number, submission, status or StatusRecord(place=number)

    async def release(self, key: str) -> bool:
        """Release a key that is quarantined, by itself or by its first run. Return whether this
        call released it."""
        self._partition.check_caller()
        if self._supervisor.release(key):
            return True
        number = await self._partition.ledger.head(key)
        if number is not None:
            # While the run is being redriven or removed, the store still shows it as it was.
            await self._runs.settled(number)
            number = await self._partition.ledger.head(key)
        head = None if number is None else await self._status(number)
        if head is None or head.state is not State.QUARANTINED:
            return False
        try:
            _, group = await self.stage_redrive(head.run_id, states=(State.QUARANTINED,))
        except (RunEnded, UnknownRun):
            # Another call has released or removed the run since. If the run has failed by now, a
            # redrive would start a new generation.
            return False
        if group is not None:
            await self._partition.store.durable(group)
        return True

    async def _next_entry(self, number: int) -> int:
        last = await self._partition.store.scan(
            "journal", prefix=self._partition.ledger.number(number), limit=1, reverse=True
        )
        return 1 + (int.from_bytes(last[0][0][-4:], "big") if last else 0)

    async def _was_undone(self, number: int) -> bool:
        """Return whether compensations of a run have run."""
        for key, raw in await self._partition.store.scan(
            "journal", prefix=self._partition.ledger.number(number)
        ):
            with suppress(StoreCorrupt):
                if isinstance(decode(unseal("journal", key, raw)), Undo):
                    return True
        return False

    async def forget(self, run_id: str) -> None:
        """Remove all records of a run that has ended or is quarantined."""
        # Before that, it is unknown whether the run has been counted as waiting to be started.
        await self._partition.counted.wait()
        await self._outbox.converted()
        number, submission, status = await self._find(run_id)
        quarantined = status.state is State.QUARANTINED
        if not (status.state.terminal or quarantined) and await self._held_by_key(submission):
            number, submission, status = await self._find(run_id)
        if not status.state.terminal and not quarantined:
            raise RunEnded(
                f"the run {run_id!r} is {status.state}; cancel it first, then forget it",
                run_id=run_id,
                key=submission.key,
            )
        family = quarantined and self._children.used
        children = await self._children.of(number) if family else []
        counted = await self._retention.counts(number, status)
        place = status.place
        evicted = await self._eviction.is_evicted(number, submission.key, place)
        pending = place is not None and not evicted and not self._partition.operator
        notify_parent: list[Callable[[], object]] = []

        def stage(group: "Group") -> None:
            """Stage what belongs to the removal of an unfinished run."""
            if family:
                notify_parent.extend(self._stage_family(group, submission, status, children))
            group.when_durable(self._drop, submission.key, number, pending)

        group = await self.erase(number, submission, status, stage if quarantined else None)
        if quarantined:
            # A run that was being woken is not counted as waiting to be started.
            self._runs.end_waking(number)
        if counted:
            self._retention.removed()
        for notify in notify_parent:
            notify()
        await self._partition.store.durable(group)

    def _drop(self, key: str, number: int, pending: bool) -> None:
        """Release the key of a quarantined run that was removed. `pending` says whether the run
        counted as waiting to be started, if it was not in memory."""
        run, queue = self._runs.find(number), self._queues.of(key)
        if run is not None:
            self._runs.remove(run)
        if run.pending if run is not None else pending:
            queue.started()
        queue.drop(number)

    def _stage_family(
        self,
        group: "Group",
        submission: Submission,
        status: StatusRecord,
        children: list[tuple[int, str]],
    ) -> "list[Callable[[], object]]":
        """Stage the message to the parent of an unfinished run that is forgotten, and the
        cancellation of its children. Return functions to call when everything is staged."""
        notify = None
        if submission.parent is not None and status.generation == 1:
            gone = attrs.evolve(status, state=State.CANCELLED, reason="it was forgotten")
            notify = self._children.ended(submission, gone, group)
        for child, child_id in children:
            self._children.stage_orphan(group, submission.number, child, child_id)
        return [] if notify is None else [notify]

    async def _held_by_key(self, submission: Submission) -> bool:
        """Cancel a run that is quarantined with its key. Return whether its key is quarantined."""
        if not self._supervisor.quarantined_run(submission.key)[0]:
            return False
        await self._control.cancel(submission.run_id)
        return True

    async def erase(
        self,
        number: int,
        submission: Submission,
        status: StatusRecord,
        stage: "Callable[[Group], None] | None" = None,
    ) -> "Group":
        """Stage the removal of every record of a run, except its outcome if that waits for the
        terminal hook. `stage` stages more that belongs to it. All is read before anything is
        staged: what cannot be read must not leave half of a run behind."""
        ledger, store = self._partition.ledger, self._partition.store
        record = ledger.number(number)
        gone = [(table, record) for table in ("runs", "status", "dead")]
        for table in _OF_RUN:
            gone += [(table, key) for key, _ in await store.scan(table, prefix=record)]
        # The id may lead to a later run by now.
        if await ledger.find(submission.run_id) == number:
            gone.append(("ids", ledger.run_id(submission.run_id)))
        if status.ended_at is not None:
            gone.append(("ended", ledger.timed(status.ended_at, number)))
        wait = status.evicted_wait
        if wait is not None and wait.due is not None:
            gone.append(("timers", ledger.timed(wait.due, number)))
        if status.place is not None:
            gone.append(("queue", ledger.place(submission.key, status.place)))
        leave: Callable[[Group], None] | None = None
        if submission.origin == SALVAGED or submission.origin.startswith(OF_GROUP):
            leave = await self._groups().prepare_removal(number, submission, status)
        dead = await self._is_dead_letter(number)
        unfinished = status.state is State.QUARANTINED and status.ended_at is None
        stored = await self._stored(number) if unfinished else None
        with self._partition.together() as group:
            for table, key in gone:
                group.delete(table, key)
            if leave is not None:
                leave(group)
            self._partition.applied(Write.FORGET, None, submission)
            if self._instances is not None:
                self._instances.dropped(group, submission)
            elif self._partition.operator:
                group.delete("instances", record)
            if stored is not None:
                self._partition.counts.leave(submission, stored)
            if dead:
                self._partition.counts.died(submission, -1)
            self._runs.begin_change(number, Change.REMOVAL, group)
            if stage is not None:
                stage(group)
        return group
