"""Loading: how a run comes into memory, with all that it remembers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import started_at
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.key_queue import KeyQueue

Rows = Sequence[tuple[bytes, bytes]]


class Stored(NamedTuple):
    """The records of a run, as they are, and where it was asked for that of its key's mapping."""

    number: int
    submission: bytes | None
    standing: bytes | None
    journal: Rows
    memos: Rows
    state: bytes | None = None


async def load(queue: "KeyQueue", place: int, number: int) -> Run | None:
    """A run that is about to be driven, with all that it remembers; None if it has no business
    in the line any more."""
    partition = queue.partition
    await partition.runs.settled(number)
    key, store = partition.ledger.number(number), partition.store
    stored = Stored(
        number=number,
        submission=await store.get("runs", key),
        standing=await store.get("status", key),
        journal=await store.scan("journal", prefix=key),
        memos=() if partition.memoless else await store.scan("memo", prefix=key),
    )
    run = assemble(queue, place, stored)
    if run is not None and partition.signals.used:
        await partition.signals.recall(run)
    return run


async def read_together(
    partition: "Partition", queues: "Sequence[KeyQueue]"
) -> "dict[KeyQueue, Stored]":
    """What is stored of the first runs of lines. Nothing where runs were sent something, since not
    all of that is in the store."""
    if partition.signals.used:
        return {}
    numbers = [queue.window[0][1] for queue in queues]
    keys = [partition.ledger.number(number) for number in numbers]
    homes = [partition.ledger.key_prefix(queue.key) for queue in queues]
    store = partition.store
    submissions = await store.get_many("runs", keys)
    standings = await store.get_many("status", keys)
    journals = await store.scan_each("journal", keys)
    nothing: list[Rows] = [()] * len(keys)
    memos = nothing if partition.memoless else await store.scan_each("memo", keys)
    states = {} if partition.stateless else await store.get_many("state", homes)
    return {
        queue: Stored(number, submissions.get(key), standings.get(key), *rows, states.get(home))
        for queue, number, key, home, rows in zip(
            queues, numbers, keys, homes, zip(journals, memos, strict=True), strict=True
        )
    }


def assemble(queue: "KeyQueue", place: int, stored: Stored) -> Run | None:
    """A run from its records; None if it has no business in the line any more."""
    partition, ledger = queue.partition, queue.partition.ledger
    key = ledger.number(stored.number)
    if stored.submission is None:
        partition.store.open_group().delete("queue", queue.place(place))
        queue.started()
        return None
    submission = ledger.read_submission(key, stored.submission)
    standing = None
    if stored.standing is not None:
        standing = ledger.read_standing(key, stored.standing)
        if standing.state.terminal:
            return None
    workflow = partition.registry.find(submission.workflow, submission.version)
    run = Run(partition, queue, submission, standing or Standing(), workflow)
    run.standing.place = place
    run.seen = run.standing.state is State.RUNNING
    take_in(run, stored.journal, stored.memos)
    return run


async def recall(run: Run) -> None:
    """Take in what a run remembers."""
    partition, prefix = run.partition, run.record
    store = partition.store
    journal = await store.scan("journal", prefix=prefix)
    take_in(run, journal, () if partition.memoless else await store.scan("memo", prefix=prefix))
    if partition.signals.used:
        await partition.signals.recall(run)


def take_in(run: Run, journal: Rows, memos: Rows) -> None:
    """Have a run remember what is in these records."""
    fold = run.journal.fold
    for key, raw in journal:
        fold(int.from_bytes(key[-4:], "big"), unseal("journal", key, raw))
    if run.workflow is not None:
        run.journal.expect(run.workflow.kind)
    # The status is not stored with every step, nor when the run starts.
    standing = run.standing
    standing.steps_done = run.journal.steps_done()
    if standing.started_at is None and journal and run.submission.limits.run_timeout is None:
        standing.started_at = started_at(unseal("journal", key, raw) for key, raw in journal)
        if standing.started_at is not None and standing.state is State.PENDING:
            standing.state = State.RUNNING
    for key, raw in memos:
        step, payload = unseal("memo", key, raw)
        run.memos[step] = payload
