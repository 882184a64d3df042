"""continue_as: continue a run with another input and an empty journal, in one commit.

1. `ctx.continue_as` ends the pass. The entries of the journal are removed, and one entry replaces
   them: how often the run has continued, the input, and the number of steps that were done before.
2. The workflow is called with that input when the commit is durable. After a crash before that, the
   journal is as it was, and the workflow comes to the same point again.

The run keeps its id, its place in the queue, its deadline, its signals and the state of its key.
Everything that is counted per journal starts anew.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.records.journal_entry import Continued
from keyrun.runtime.run.empty import NOTHING
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run

UNDOABLE = (
    "continue_as would lose the compensations of {steps}: a run that has completed steps with a "
    "compensation cannot continue with an empty journal; call those steps in a run of their own"
)


def input_of(run: "Run") -> bytes:
    """Return the stored input that the workflow of a run is called with."""
    continued = run.journal.continued
    return run.submission.input if continued is None else continued.input


def identity(run: "Run", name: str) -> bytes:
    """Return bytes that are different for every call of every run and journal."""
    continued = run.journal.continued
    journal = "" if continued is None else f"\0{continued.number}"
    return f"{run.run_id}\0{run.number}\0{name}{journal}".encode()


def why_not_continued(run: "Run") -> str | None:
    """Return why a run cannot be continued, or None if it can."""
    undoable = run.journal.undoable
    return UNDOABLE.format(steps=", ".join(map(repr, undoable))) if undoable else None


def continue_with(run: "Run", input_: bytes) -> None:
    """Stage that a run whose pass has ended continues with another input."""
    partition, ledger, status = run.partition, run.partition.ledger, run.status
    before = run.journal
    count = 1 if before.continued is None else before.continued.number + 1
    continued = Continued(partition.wall(), count, input_, status.steps_done)
    with partition.together() as group:
        if partition.services.children.used:
            partition.services.children.cancel_children(run)
        for sequence in range(1, before.next):
            group.delete("journal", ledger.entry(run.number, sequence))
        for step in run.memos:
            group.delete("memo", ledger.step(run.number, step))
        run.journal = Journal()
        run.journal.continued = continued
        run.put("journal", ledger.entry(run.number, 0), *continued.encode())
        status.state = State.RUNNING
        status.waiting_on = status.step = None
        status.attempt = 0
        if status.patches is not None:
            partition.counts.patched(run.submission, status.patches, -1)
            status.patches = None
        status.fingerprint = run.workflow.fingerprint()
        run.store_status()
    run.memos.clear()
    run.compensators = None
    run.logged = NOTHING
    run.rewind()
    if partition.feed is not None:
        change = EventKind.RUN_CONTINUED, run.submission, status
        emitter.run_changed(partition.feed, run.staged, *change)
