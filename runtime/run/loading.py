"""Loading: makes a run in memory from its records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import JournalEntry, decode, started_at
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import misplaced
from keyrun.runtime.run.empty import writable
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.services import KeyQueueOfRun

_RUNNING = State.RUNNING  # looking it up takes as long as a call

Rows = Sequence[tuple[bytes, bytes]]


class Stored(NamedTuple):
    """The undecoded records of a run, and the state of its key if that was read, too."""

    number: int
    submission: bytes | None
    status: bytes | None
    journal: Rows
    memos: Rows
    state: bytes | None = None


async def load(
    partition: "PartitionState", queue: "KeyQueueOfRun", place: int, number: int
) -> Run | None:
    """Load a run that is about to be driven. Return None if the run has left the queue.

    No change of the run may be staged: see `RunTable.settled`."""
    key, store = partition.ledger.number(number), partition.store
    stored = Stored(
        number=number,
        submission=await store.get("runs", key),
        status=await store.get("status", key),
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
    statuses = await store.get_many("status", keys)
    journals = await store.scan_each("journal", keys)
    nothing: list[Rows] = [()] * len(keys)
    memos = await store.scan_each("memo", keys) if partition.has_memos else nothing
    states = await store.get_many("state", prefixes) if partition.has_key_state else {}
    return [
        Stored(number, submissions.get(key), statuses.get(key), *rows, states.get(prefix))
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
    status = None
    if stored.status is not None:
        status = ledger.read_status(key, stored.status)
        if status.state.terminal:
            return None
    workflow = partition.registry.find(submission.workflow, submission.version)
    run = Run(partition, queue, submission, status or StatusRecord(), workflow)
    run.status.place = place
    if stored.status is not None:
        run.counted = run.status.counted()
    run.shown_running = run.status.state is _RUNNING
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
    status = run.status
    status.steps_done = run.journal.steps_done()
    if status.started_at is None and journal and run.submission.limits.run_timeout is None:
        status.started_at = started_at(entries)
        if status.started_at is not None and status.state is State.PENDING:
            status.state = State.RUNNING
    for key, raw in memos:
        step, payload = unseal("memo", key, raw)
        run.memos = writable(run.memos)
        run.memos[step] = payload
