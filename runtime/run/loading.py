"""Loading: how a run comes into memory, with all that it remembers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from keyrun.runtime.records.journal_entry import started_at
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import State
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Engine
    from keyrun.runtime.queue.key_queue import Line

Rows = Sequence[tuple[bytes, bytes]]


class Stored(NamedTuple):
    """The records of a run, as they are, and where it was asked for that of its key's mapping."""

    number: int
    submission: bytes | None
    standing: bytes | None
    journal: Rows
    memos: Rows
    state: bytes | None = None


async def load(line: "Line", place: int, number: int) -> Run | None:
    """A run that is about to be driven, with all that it remembers; None if it has no business
    in the line any more."""
    engine = line.engine
    await engine.runs.settled(number)
    key, store = engine.ledger.number(number), engine.store
    stored = Stored(
        number=number,
        submission=await store.get("runs", key),
        standing=await store.get("status", key),
        journal=await store.scan("journal", prefix=key),
        memos=() if engine.memoless else await store.scan("memo", prefix=key),
    )
    run = assemble(line, place, stored)
    if run is not None and engine.signals.used:
        await engine.signals.recall(run)
    return run


async def read_together(engine: "Engine", lines: "Sequence[Line]") -> "dict[Line, Stored]":
    """What is stored of the first runs of lines. Nothing where runs were sent something, since not
    all of that is in the store."""
    if engine.signals.used:
        return {}
    numbers = [line.window[0][1] for line in lines]
    keys = [engine.ledger.number(number) for number in numbers]
    homes = [engine.ledger.line(line.key) for line in lines]
    store = engine.store
    submissions = await store.get_many("runs", keys)
    standings = await store.get_many("status", keys)
    journals = await store.scan_each("journal", keys)
    nothing: list[Rows] = [()] * len(keys)
    memos = nothing if engine.memoless else await store.scan_each("memo", keys)
    states = {} if engine.stateless else await store.get_many("state", homes)
    return {
        line: Stored(number, submissions.get(key), standings.get(key), *rows, states.get(home))
        for line, number, key, home, rows in zip(
            lines, numbers, keys, homes, zip(journals, memos, strict=True), strict=True
        )
    }


def assemble(line: "Line", place: int, stored: Stored) -> Run | None:
    """A run from its records; None if it has no business in the line any more."""
    engine, ledger = line.engine, line.engine.ledger
    key = ledger.number(stored.number)
    if stored.submission is None:
        engine.store.open_group().delete("queue", line.place(place))
        line.started()
        return None
    submission = ledger.read_submission(key, stored.submission)
    standing = None
    if stored.standing is not None:
        standing = ledger.read_standing(key, stored.standing)
        if standing.state.terminal:
            return None
    workflow = engine.registry.find(submission.workflow, submission.version)
    run = Run(engine, line, submission, standing or Standing(), workflow)
    run.standing.place = place
    run.seen = run.standing.state is State.RUNNING
    take_in(run, stored.journal, stored.memos)
    return run


async def recall(run: Run) -> None:
    """Take in what a run remembers."""
    engine, prefix = run.engine, run.record
    store = engine.store
    journal = await store.scan("journal", prefix=prefix)
    take_in(run, journal, () if engine.memoless else await store.scan("memo", prefix=prefix))
    if engine.signals.used:
        await engine.signals.recall(run)


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
