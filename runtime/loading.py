"""Loading: how a run comes into memory, with all that it remembers."""

from typing import TYPE_CHECKING

from keyrun.runtime.records import Standing
from keyrun.runtime.run import Run
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.order.line import Line


async def load(line: "Line", place: int, number: int) -> Run | None:
    """A run that is about to be driven, with all that it remembers; None if it has no business
    in the line any more."""
    engine = line.engine
    while (resting := engine.resting.get(number)) is not None:
        await resting.gate()
    submission = await engine.ledger.submission(number)
    if submission is None:
        engine.store.open_group().delete("queue", line.place(place))
        line.started()
        return None
    standing = await engine.ledger.standing(number)
    if standing is not None and standing.state.terminal:
        return None
    workflow = engine.registry.find(submission.workflow, submission.version)
    run = Run(engine, line, submission, standing or Standing(), workflow)
    run.standing.place = place
    run.seen = run.standing.state is State.RUNNING
    await recall(run)
    return run


async def recall(run: Run) -> None:
    """Take in what a run remembers."""
    journal, engine, prefix = run.journal, run.engine, run.record
    ledger = engine.ledger
    for key, fields in await ledger.scan("journal", prefix):
        journal.fold(int.from_bytes(key[-4:], "big"), fields)
    # The status is not stored with every step.
    run.standing.steps_done = journal.steps_done()
    if not engine.memoless:
        for _, (step, payload) in await ledger.scan("memo", prefix):
            run.memos[step] = payload
    if engine.signals.used:
        await engine.signals.recall(run)
