"""Redrive, forget and release: what an operator does with dead letters and quarantined runs."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import attrs

from keyrun.runtime.errors import RunEnded, UnknownRun
from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.operations.control import Control
from keyrun.runtime.operations.damaged_runs import DamagedRuns, check_submitted
from keyrun.runtime.records.journal_entry import Redriven, Undo, decode
from keyrun.runtime.records.submission import OF_GROUP, SALVAGED, Standing, Submission
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
    from keyrun.runtime.waiting.signals import Signals
    from keyrun.storage.group import Group


class KeySupervisor(Protocol):
    """Knows the keys that are quarantined because their actor crashed."""

    def quarantined_run(self, key: str) -> "tuple[bool, int | None]":
        """Return whether a key is quarantined, and the run whose turn it was."""

    def release(self, key: str) -> bool:
        """Serve a key again. Return whether it was quarantined."""


class RetentionCount(Protocol):
    """Counts the ended runs that retention keeps."""

    async def counts(self, number: int, standing: Standing) -> bool:
        """Return whether an ended run counts."""

    def removed(self) -> None:
        """Count one run fewer."""


class MemberRemoval(Protocol):
    """The groups, which keep the end of a member whose run is forgotten."""

    async def prepare_removal(
        self, number: int, submission: Submission, standing: Standing
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
        control: Control,
        damaged: DamagedRuns,
        signals: "Signals",
        children: "Children",
        outbox: "Outbox",
        instances: "Instances | None",
        supervisor: KeySupervisor,
        retention: RetentionCount,
        groups: "Callable[[], MemberRemoval]",
        status: "Callable[[int], Awaitable[RunStatus | None]]",
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._control = control
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
        """Give a failed or quarantined run another chance, with today's code. Returns its
        generation.

        A failed run gets a place at the end of its key's line, a fresh deadline and fresh budgets,
        and goes on from the step that failed. A quarantined one keeps its place."""
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
        number, submission, standing = await self._find(run_id)
        if standing.state in states:
            check_submitted(submission)
        if standing.state is State.QUARANTINED:
            if standing.place is None:
                return await self._back_in_line(submission, standing), None
            return standing.generation, self._retry_in_place(submission, standing)
        held, held_run = self._supervisor.quarantined_run(submission.key)
        if held and held_run == number and not standing.state.terminal:
            self._supervisor.release(submission.key)
            return standing.generation, None
        if held and not standing.state.terminal:
            raise RunEnded(
                f"the run {run_id!r} waits for its key; release_key({submission.key!r}) tries "
                "again",
                run_id=run_id,
                key=submission.key,
            )
        ledger = self._partition.ledger
        if standing.state is State.FAILED and await self._was_undone(number):
            raise RunEnded(
                f"what the run {run_id!r} had done was undone, so it cannot go on from there; "
                "submit it again under another id",
                run_id=run_id,
                key=submission.key,
            )
        journal_key = ledger.entry(number, await self._next_entry(number))
        counted = await self._retention.counts(number, standing)
        if standing.state not in states:
            raise RunEnded(
                f"the run {run_id!r} is {standing.state}; only failed and quarantined runs can be "
                "redriven",
                run_id=run_id,
                key=submission.key,
            )
        version = self._todays_version(submission)
        generation = standing.generation + 1
        place = self._partition.take_number()
        group = self._partition.store.open_group()
        assert standing.ended_at is not None
        group.delete("ended", ledger.timed(standing.ended_at, number))
        if counted:
            self._retention.removed()
        group.delete("dead", ledger.number(number))
        fresh = Standing(
            generation=generation,
            place=place,
            steps_done=standing.steps_done,
            fingerprint=standing.fingerprint,
            patches=standing.patches,
        )
        self._put_standing(group, number, fresh)
        redriven = Redriven(self._partition.wall(), generation, standing)
        group.put("journal", journal_key, sealed("journal", journal_key, *redriven.encode()))
        queued = ledger.place(submission.key, place)
        group.put("queue", queued, sealed("queue", queued, *placed(submission)))
        submission = self._put_version(group, submission, version)
        self._partition.unfinished.enter(submission, fresh)
        self._queues.enter(submission.key)
        self._runs.begin_change(number, Change.REDRIVE, group)
        self._tell(group, submission, fresh)
        group.when_durable(self._admit, submission.key, place, number)
        return generation, group

    def _admit(self, key: str, place: int, number: int) -> None:
        self._queues.of(key).admit_stored(place, number)

    async def _back_in_line(self, submission: Submission, standing: Standing) -> int:
        """A run that was set aside gets a place at the end of its key's line."""
        number, version = submission.number, self._todays_version(submission)
        async with self._damaged.lock:
            fresh = await self._damaged.readmit(submission, standing)
            known = await self._partition.ledger.standing(number)
            if known is None or known.state is not State.QUARANTINED:
                # Somebody else asked at the same time.
                return fresh.generation
            place = fresh.place
            assert place is not None
            group = self._partition.store.open_group()
            submission = self._put_version(group, submission, version)
            self._partition.unfinished.enter(submission, fresh)
            self._put_standing(group, number, fresh)
            queued = self._partition.ledger.place(submission.key, place)
            group.put("queue", queued, sealed("queue", queued, *placed(submission)))
            self._queues.enter(submission.key)
            self._runs.begin_change(number, Change.REDRIVE, group)
            group.when_durable(self._admit, submission.key, place, number)
            self._tell(group, submission, fresh)
            await self._partition.store.durable(group)
            return fresh.generation

    def _tell(self, group: "Group", submission: Submission, standing: Standing) -> None:
        if self._partition.feed is not None:
            kind = EventKind.RUN_REDRIVEN
            emitter.run_changed(self._partition.feed, group, kind, submission, standing)

    def _retry_in_place(self, submission: Submission, standing: Standing) -> "Group":
        """Stage that a quarantined run that holds its key is tried again. What memory has of the
        run stays quarantined until that is durable, so that its actor leaves it alone."""
        version = self._todays_version(submission)
        number, group = submission.number, self._partition.store.open_group()
        again = attrs.evolve(standing)
        again.lift_quarantine()
        self._put_standing(group, number, again)
        self._partition.unfinished.leave(submission, standing)
        submission = self._put_version(group, submission, version)
        self._partition.unfinished.enter(submission, again)
        self._runs.begin_change(number, Change.REDRIVE, group)
        group.when_durable(self._reload, submission.key, number)
        self._tell(group, submission, again)
        return group

    def _reload(self, key: str, number: int) -> None:
        self._queues.of(key).reload(number)

    def _todays_version(self, submission: Submission) -> int:
        """The version of the run, or the latest if that is no longer registered."""
        if self._partition.registry.find(submission.workflow, submission.version) is not None:
            return submission.version
        return self._partition.registry.latest(submission.workflow).version

    def _put_version(self, group: "Group", submission: Submission, version: int) -> Submission:
        """The submission with this version, staged if that is another one."""
        if version == submission.version:
            return submission
        record = self._partition.ledger.number(submission.number)
        changed = attrs.evolve(submission, version=version)
        group.put("runs", record, sealed("runs", record, *changed.fields()))
        return changed

    def _put_standing(self, group: "Group", number: int, standing: Standing) -> None:
        record = self._partition.ledger.number(number)
        group.put("status", record, sealed("status", record, *standing.fields()))

    async def _find(self, run_id: str) -> tuple[int, Submission, Standing]:
        """Return a run that is to be redriven or removed. Nothing of it is staged if it has ended
        or is quarantined: what is only staged has not happened yet."""
        while True:
            number = await self._runs.number_of(run_id)
            run = None if number is None else self._runs.find(number)
            if number is not None and self._signals.staged(number):
                await self._partition.store.durable()
                continue
            if run is None or run.staged is None or run.staged.durable:
                break
            if not run.standing.state.terminal and run.standing.state is not State.QUARANTINED:
                break
            await self._partition.store.durable(run.staged)
        submission: Submission | None = None
        standing: Standing | None = None
        if number is not None:
            try:
                submission = await self._partition.ledger.submission(number)
                standing = (
                    run.standing
                    if run is not None
                    else await self._partition.ledger.standing(number)
                )
            except StoreCorrupt as error:
                submission, standing = await self._damaged.remains(number, error)
                if self._runs.changing(number) is not None:
                    return await self._find(run_id)
        if number is None or submission is None:
            raise UnknownRun(
                f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id
            )
        return number, submission, standing or Standing(place=number)

    async def release(self, key: str) -> bool:
        """Release a key that is quarantined, by itself or by its first run. Return whether this
        call released it."""
        self._partition.check_open()
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
            # Another call has released or removed the run since. If the run has failed by now, to
            # redrive it would start a generation that nobody asked for.
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
        """Whether compensations of a run ran."""
        for key, raw in await self._partition.store.scan(
            "journal", prefix=self._partition.ledger.number(number)
        ):
            with suppress(StoreCorrupt):
                if isinstance(decode(unseal("journal", key, raw)), Undo):
                    return True
        return False

    async def forget(self, run_id: str) -> None:
        """Remove all that is stored of a run that has ended, or is quarantined."""
        # Before, one could not tell whether the run has been counted as waiting.
        await self._partition.counted.wait()
        await self._outbox.converted()
        number, submission, standing = await self._find(run_id)
        quarantined = standing.state is State.QUARANTINED
        if not (standing.state.terminal or quarantined) and await self._held_by_key(submission):
            number, submission, standing = await self._find(run_id)
        if not standing.state.terminal and not quarantined:
            raise RunEnded(
                f"the run {run_id!r} is {standing.state}; cancel it first, then forget it",
                run_id=run_id,
                key=submission.key,
            )
        family = quarantined and self._children.used
        children = await self._children.of(number) if family else []
        counted = await self._retention.counts(number, standing)
        group = await self.erase(number, submission, standing)
        if counted:
            self._retention.removed()
        if family:
            self._tell_family(group, submission, standing, children)
        if quarantined:
            group.when_durable(self._drop, submission.key, number, standing.place is not None)
        await self._partition.store.durable(group)

    def _drop(self, key: str, number: int, placed: bool) -> None:
        """A quarantined run was removed: its key is free."""
        run, queue = self._runs.find(number), self._queues.of(key)
        if run is not None:
            self._runs.remove(run)
        if run.pending if run is not None else placed:
            queue.started()
        queue.drop(number)

    def _tell_family(
        self,
        group: "Group",
        submission: Submission,
        standing: Standing,
        children: list[tuple[int, str]],
    ) -> None:
        """A run that has not ended is forgotten: who waits for it is told, and its children end."""
        if submission.parent is not None and standing.generation == 1:
            gone = attrs.evolve(standing, state=State.CANCELLED, reason="it was forgotten")
            self._children.ended(submission, gone, group)
        for child, child_id in children:
            self._children.leave_alone(group, submission.number, child, child_id)

    async def _held_by_key(self, submission: Submission) -> bool:
        """End a run that is quarantined with its key. Says whether it was."""
        if not self._supervisor.quarantined_run(submission.key)[0]:
            return False
        await self._control.cancel(submission.run_id)
        return True

    async def erase(self, number: int, submission: Submission, standing: Standing) -> "Group":
        """Stage the removal of every record of a run, except its outcome if that waits for the
        terminal hook. All of it is read before anything is staged: what cannot be read must not
        leave half of a run behind."""
        ledger, store = self._partition.ledger, self._partition.store
        record = ledger.number(number)
        gone = [(table, record) for table in ("runs", "status", "dead")]
        for table in ("journal", "memo", "begun", "reports", "signals", "sent", "children"):
            gone += [(table, key) for key, _ in await store.scan(table, prefix=record)]
        # The id may lead to a later run by now.
        if await ledger.find(submission.run_id) == number:
            gone.append(("ids", ledger.run_id(submission.run_id)))
        if standing.ended_at is not None:
            gone.append(("ended", ledger.timed(standing.ended_at, number)))
        if standing.place is not None:
            gone.append(("queue", ledger.place(submission.key, standing.place)))
        leave: Callable[[Group], None] | None = None
        if submission.origin == SALVAGED or submission.origin.startswith(OF_GROUP):
            leave = await self._groups().prepare_removal(number, submission, standing)
        group = store.open_group()
        for table, key in gone:
            group.delete(table, key)
        if leave is not None:
            leave(group)
        if self._instances is not None:
            self._instances.dropped(group, submission)
        if standing.state is State.QUARANTINED and standing.place is not None:
            # What has ended does not count any more, and what is damaged has left the counts.
            self._partition.unfinished.leave(submission, standing)
        self._runs.begin_change(number, Change.REMOVAL, group)
        return group
