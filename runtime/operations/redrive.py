"""Dead letters and what is quarantined, and their way back: redrive, forget, release."""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.errors import RunEnded, UnknownRun
from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.operations.control import Control
from keyrun.runtime.records.submission import OF_GROUP, SALVAGED, Standing, Submission, write_end
from keyrun.runtime.records.tables import placed, sealed
from keyrun.runtime.recovery.corruption import check_submitted, readmit, remains
from keyrun.runtime.run.journal import Entry
from keyrun.runtime.runs import Change
from keyrun.runtime.texts import brief
from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.storage.group import Group


async def redrive(partition: "Partition", run_id: str) -> int:
    """Give a failed or quarantined run another chance, with today's code. Returns its generation.

    A failed run gets a place at the end of its key's line, a fresh deadline and fresh budgets, and
    goes on from the step that failed. A quarantined one keeps its place."""
    generation, group = await stage_redrive(partition, run_id)
    if group is not None:
        await partition.store.durable(group)
    return generation


async def stage_redrive(
    partition: "Partition",
    run_id: str,
    *,
    states: Collection[State] = (State.FAILED, State.QUARANTINED),
) -> "tuple[int, Group | None]":
    """Stage what `redrive` does to a run that is in one of `states`. There is no group if the run
    was redriven before this returns."""
    await partition.outbox.converted()
    number, submission, standing = await _find(partition, run_id)
    if standing.state in states:
        check_submitted(submission)
    if standing.state is State.QUARANTINED:
        if standing.place is None:
            return await _back_in_line(partition, submission, standing), None
        return standing.generation, _retry_in_place(partition, submission, standing)
    held = partition.crashes.quarantined.get(submission.key)
    if held is not None and held.number == number and not standing.state.terminal:
        partition.crashes.release(submission.key)
        return standing.generation, None
    if held is not None and not standing.state.terminal:
        raise RunEnded(
            f"the run {run_id!r} waits for its key; release_key({submission.key!r}) tries again",
            run_id=run_id,
            key=submission.key,
        )
    ledger = partition.ledger
    if standing.state is State.FAILED and await _was_undone(partition, number):
        raise RunEnded(
            f"what the run {run_id!r} had done was undone, so it cannot go on from there; submit "
            "it again under another id",
            run_id=run_id,
            key=submission.key,
        )
    journal_key = ledger.entry(number, await _next_entry(partition, number))
    counted = await partition.sweeper.counts(number, standing)
    if standing.state not in states:
        raise RunEnded(
            f"the run {run_id!r} is {standing.state}; only failed and quarantined runs can be "
            "redriven",
            run_id=run_id,
            key=submission.key,
        )
    version = _todays_version(partition, submission)
    generation = standing.generation + 1
    place = partition.take_number()
    group = partition.store.open_group()
    assert standing.ended_at is not None
    group.delete("ended", ledger.timed(standing.ended_at, number))
    if counted:
        partition.sweeper.removed()
    group.delete("dead", ledger.number(number))
    fresh = Standing(
        generation=generation,
        place=place,
        steps_done=standing.steps_done,
        fingerprint=standing.fingerprint,
        patches=standing.patches,
    )
    _put_standing(partition, group, number, fresh)
    fields = (int(Entry.REDRIVEN), "", partition.wall(), generation, *write_end(standing))
    group.put("journal", journal_key, sealed("journal", journal_key, *fields))
    queued = ledger.place(submission.key, place)
    group.put("queue", queued, sealed("queue", queued, *placed(submission)))
    submission = _put_version(partition, group, submission, version)
    partition.unfinished.enter(submission, fresh)
    partition.enter(submission.key)
    partition.runs.begin_change(number, Change.REDRIVE, group)
    _tell(partition, group, submission, fresh)
    group.when_durable(_admit, partition, submission.key, place, number)
    return generation, group


def _admit(partition: "Partition", key: str, place: int, number: int) -> None:
    partition.queue(key).admit_stored(place, number)


async def _back_in_line(partition: "Partition", submission: Submission, standing: Standing) -> int:
    """A run that was set aside gets a place at the end of its key's line."""
    number, version = submission.number, _todays_version(partition, submission)
    async with partition.salvaging:
        fresh = await readmit(partition, submission, standing)
        known = await partition.ledger.standing(number)
        if known is None or known.state is not State.QUARANTINED:
            # Somebody else asked at the same time.
            return fresh.generation
        place = fresh.place
        assert place is not None
        group = partition.store.open_group()
        submission = _put_version(partition, group, submission, version)
        partition.unfinished.enter(submission, fresh)
        _put_standing(partition, group, number, fresh)
        queued = partition.ledger.place(submission.key, place)
        group.put("queue", queued, sealed("queue", queued, *placed(submission)))
        partition.enter(submission.key)
        partition.runs.begin_change(number, Change.REDRIVE, group)
        group.when_durable(_admit, partition, submission.key, place, number)
        _tell(partition, group, submission, fresh)
        await partition.store.durable(group)
        return fresh.generation


def _tell(
    partition: "Partition", group: "Group", submission: Submission, standing: Standing
) -> None:
    if partition.feed is not None:
        kind = EventKind.RUN_REDRIVEN
        emitter.run_changed(partition.feed, group, kind, submission, standing)


def _retry_in_place(partition: "Partition", submission: Submission, standing: Standing) -> "Group":
    """Stage that a quarantined run that holds its key is tried again. What memory has of the run
    stays quarantined until that is durable, so that its actor leaves it alone."""
    version = _todays_version(partition, submission)
    number, group = submission.number, partition.store.open_group()
    again = attrs.evolve(standing)
    again.lift_quarantine()
    _put_standing(partition, group, number, again)
    partition.unfinished.leave(submission, standing)
    submission = _put_version(partition, group, submission, version)
    partition.unfinished.enter(submission, again)
    partition.runs.begin_change(number, Change.REDRIVE, group)
    group.when_durable(_reload, partition, submission.key, number)
    _tell(partition, group, submission, again)
    return group


def _reload(partition: "Partition", key: str, number: int) -> None:
    partition.queue(key).reload(number)


def _todays_version(partition: "Partition", submission: Submission) -> int:
    """The version of the run, or the latest if that is no longer registered."""
    if partition.registry.find(submission.workflow, submission.version) is not None:
        return submission.version
    return partition.registry.latest(submission.workflow).version


def _put_version(
    partition: "Partition", group: "Group", submission: Submission, version: int
) -> Submission:
    """The submission with this version, staged if that is another one."""
    if version == submission.version:
        return submission
    record = partition.ledger.number(submission.number)
    changed = attrs.evolve(submission, version=version)
    group.put("runs", record, sealed("runs", record, *changed.fields()))
    return changed


def _put_standing(partition: "Partition", group: "Group", number: int, standing: Standing) -> None:
    record = partition.ledger.number(number)
    group.put("status", record, sealed("status", record, *standing.fields()))


async def _find(partition: "Partition", run_id: str) -> tuple[int, Submission, Standing]:
    """Return a run that is to be redriven or removed. Nothing of it is staged if it has ended or is
    quarantined: what is only staged has not happened yet."""
    while True:
        number = await partition.runs.number_of(run_id)
        run = None if number is None else partition.runs.find(number)
        if number is not None and partition.signals.staged(number):
            await partition.store.durable()
            continue
        if run is None or run.staged is None or run.staged.durable:
            break
        if not run.standing.state.terminal and run.standing.state is not State.QUARANTINED:
            break
        await partition.store.durable(run.staged)
    submission: Submission | None = None
    standing: Standing | None = None
    if number is not None:
        try:
            submission = await partition.ledger.submission(number)
            standing = run.standing if run is not None else await partition.ledger.standing(number)
        except StoreCorrupt as error:
            submission, standing = await remains(partition, number, error)
            if partition.runs.changing(number) is not None:
                return await _find(partition, run_id)
    if number is None or submission is None:
        raise UnknownRun(f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id)
    return number, submission, standing or Standing(place=number)


async def release(partition: "Partition", key: str) -> bool:
    """Serve a key again that is quarantined, by itself or by its first run."""
    partition.check_open()
    if partition.crashes.release(key):
        return True
    number = await partition.ledger.head(key)
    if number is not None:
        # While the run is being redriven or removed, the store still shows it as it was.
        await partition.runs.settled(number)
        number = await partition.ledger.head(key)
    head = None if number is None else await partition.reading.status(number)
    if head is None or head.state is not State.QUARANTINED:
        return False
    await redrive(partition, head.run_id)
    return True


async def _next_entry(partition: "Partition", number: int) -> int:
    last = await partition.store.scan(
        "journal", prefix=partition.ledger.number(number), limit=1, reverse=True
    )
    return 1 + (int.from_bytes(last[0][0][-4:], "big") if last else 0)


async def _was_undone(partition: "Partition", number: int) -> bool:
    """Whether compensations of a run ran."""
    for key, raw in await partition.store.scan("journal", prefix=partition.ledger.number(number)):
        with suppress(StoreCorrupt):
            if unseal("journal", key, raw)[0] == Entry.UNDO:
                return True
    return False


async def forget(partition: "Partition", run_id: str) -> None:
    """Remove all that is stored of a run that has ended, or is quarantined."""
    # Before, one could not tell whether the run has been counted as waiting.
    await partition.counted.wait()
    await partition.outbox.converted()
    number, submission, standing = await _find(partition, run_id)
    quarantined = standing.state is State.QUARANTINED
    if not (standing.state.terminal or quarantined) and await _held_by_key(partition, submission):
        number, submission, standing = await _find(partition, run_id)
    if not standing.state.terminal and not quarantined:
        raise RunEnded(
            f"the run {run_id!r} is {standing.state}; cancel it first, then forget it",
            run_id=run_id,
            key=submission.key,
        )
    family = quarantined and partition.children.used
    children = await partition.children.of(number) if family else []
    counted = await partition.sweeper.counts(number, standing)
    group = await erase(partition, number, submission, standing)
    if counted:
        partition.sweeper.removed()
    if family:
        _tell_family(partition, group, submission, standing, children)
    if quarantined:
        group.when_durable(_drop, partition, submission.key, number, standing.place is not None)
    await partition.store.durable(group)


def _drop(partition: "Partition", key: str, number: int, placed: bool) -> None:
    """A quarantined run was removed: its key is free."""
    run, queue = partition.runs.find(number), partition.queue(key)
    if run is not None:
        partition.runs.remove(run)
    if run.pending if run is not None else placed:
        queue.started()
    queue.drop(number)


def _tell_family(
    partition: "Partition",
    group: "Group",
    submission: Submission,
    standing: Standing,
    children: list[tuple[int, str]],
) -> None:
    """A run that has not ended is forgotten: who waits for it is told, and its children end."""
    if submission.parent is not None and standing.generation == 1:
        gone = attrs.evolve(standing, state=State.CANCELLED, reason="it was forgotten")
        partition.children.ended(submission, gone, group)
    for child, child_id in children:
        partition.children.leave_alone(group, submission.number, child, child_id)


async def _held_by_key(partition: "Partition", submission: Submission) -> bool:
    """End a run that is quarantined with its key. Says whether it was."""
    if submission.key not in partition.crashes.quarantined:
        return False
    await Control(partition).cancel(submission.run_id)
    return True


async def erase(
    partition: "Partition", number: int, submission: Submission, standing: Standing
) -> "Group":
    """Stage the removal of every record of a run, except its outcome if that waits for the terminal
    hook. All of it is read before anything is staged: what cannot be read must not leave half of a
    run behind."""
    ledger, store = partition.ledger, partition.store
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
        leave = await partition.groups.leaving(number, submission, standing)
    group = store.open_group()
    for table, key in gone:
        group.delete(table, key)
    if leave is not None:
        leave(group)
    if partition.instances is not None:
        partition.instances.dropped(group, submission)
    if standing.state is State.QUARANTINED and standing.place is not None:
        # What has ended does not count any more, and what is damaged has left the counts.
        partition.unfinished.leave(submission, standing)
    partition.runs.begin_change(number, Change.REMOVAL, group)
    return group
