"""Loading: makes a run in memory from its records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import JournalEntry, decode, started_at
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.records.tables import misplaced
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.services import KeyQueueOfRun

Rows = Sequence[tuple[bytes, bytes]]


class Stored(NamedTuple):
    """The records of a run, undecoded, and the state of its key if that was read, too."""

    number: int
    submission: bytes | None
    standing: bytes | None
    journal: Rows
    memos: Rows
    state: bytes | None = None


async def load(
    partition: "PartitionState", queue: "KeyQueueOfRun", place: int, number: int
) -> Run | None:
    """Load a run that is about to be driven. Return None if the run has left the queue.

    The store has to be right about the run: see `RunTable.settled`."""
    key, store = partition.ledger.number(number), partition.store
    stored = Stored(
        number=number,
        submission=await store.get("runs", key),
        standing=await store.get("status", key),
        journal=await store.scan("journal", prefix=key),
        memos=await store.scan("memo", prefix=key) if partition.has_memos else (),
    )
    run = assemble(partition, queue, place, stored)
    if run is not None and partition.services.signals.used:
        await partition.services.signals.recall(run)
    return run


async def read_together(
    partition: "PartitionState", heads: Sequence[tuple[str, int]]
) -> list[Stored]:
    """Read the first runs of keys, given as key and number, with one scan for each table.

    Return nothing if runs were sent signals, because not all of those are in the store."""
    if partition.services.signals.used:
        return []
    ledger, store = partition.ledger, partition.store
    keys = [ledger.number(number) for _, number in heads]
    prefixes = [ledger.key_prefix(key) for key, _ in heads]
    submissions = await store.get_many("runs", keys)
    standings = await store.get_many("status", keys)
    journals = await store.scan_each("journal", keys)
    nothing: list[Rows] = [()] * len(keys)
    memos = await store.scan_each("memo", keys) if partition.has_memos else nothing
    states = await store.get_many("state", prefixes) if partition.has_key_state else {}
    return [
        Stored(number, submissions.get(key), standings.get(key), *rows, states.get(prefix))
        for (_, number), key, prefix, rows in zip(
            heads, keys, prefixes, zip(journals, memos, strict=True), strict=True
        )
    ]


def assemble(
    partition: "PartitionState", queue: "KeyQueueOfRun", place: int, stored: Stored
) -> Run | None:
    """Make a run from its records. Return None if the run has left the queue.

    Raise `StoreCorrupt` if the run belongs to another key."""
    ledger = partition.ledger
    key = ledger.number(stored.number)
    if stored.submission is None:
        partition.store.open_group().delete("queue", queue.place(place))
        queue.started()
        return None
    submission = ledger.read_submission(key, stored.submission)
    if submission.key != queue.key:
        # The key of the record in `queue` was damaged. Only the submission has a checksum that
        # holds, and says which key the run belongs to.
        raise misplaced(submission, queue.place(place))
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
    """Load the journal, the memos and the signals of a run."""
    partition, prefix = run.partition, run.record
    store = partition.store
    journal = await store.scan("journal", prefix=prefix)
    take_in(run, journal, await store.scan("memo", prefix=prefix) if partition.has_memos else ())
    if partition.services.signals.used:
        await partition.services.signals.recall(run)


def take_in(run: Run, journal: Rows, memos: Rows) -> None:
    """Fold the records of a journal and of memos into a run."""
    fold = run.journal.fold
    entries: list[JournalEntry] = []
    for key, raw in journal:
        entry = decode(unseal("journal", key, raw))
        entries.append(entry)
        fold(int.from_bytes(key[-4:], "big"), entry)
    if run.workflow is not None:
        run.journal.expect(run.workflow.kind)
    # The status is not stored with every step, nor when the run starts.
    standing = run.standing
    standing.steps_done = run.journal.steps_done()
    if standing.started_at is None and journal and run.submission.limits.run_timeout is None:
        standing.started_at = started_at(entries)
        if standing.started_at is not None and standing.state is State.PENDING:
            standing.state = State.RUNNING
    for key, raw in memos:
        step, payload = unseal("memo", key, raw)
        run.memos[step] = payload
