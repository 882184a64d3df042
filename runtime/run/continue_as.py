"""Continuing: a run goes on with another input and an empty journal, in one commit.

1. `ctx.continue_as` ends the pass. What the journal has is removed, and one entry in its place says
   how often that was done, with which input, and how many steps were done before.
2. The workflow is called with that input when the commit is durable. A crash before it finds the
   journal as it was, and the workflow comes to the same point again.

The run stays what it is: its id, its place in line, its deadline, what it was sent and has not
taken, and the mapping of its key. What is counted per journal begins anew.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.records.journal_entry import Continued
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run

UNDOABLE = (
    "continue_as would forget how to undo {steps}: a run that has done steps with a compensation "
    "cannot go on with an empty journal; do those in a run of their own"
)


def input_of(run: "Run") -> bytes:
    """What the workflow of a run is called with, as it is stored."""
    continued = run.journal.continued
    return run.submission.input if continued is None else continued.input


def identity(run: "Run", name: str) -> bytes:
    """What tells a call from all others: of other runs, and of other journals of this one."""
    continued = run.journal.continued
    journal = "" if continued is None else f"\0{continued.number}"
    return f"{run.run_id}\0{run.number}\0{name}{journal}".encode()


def what_keeps(run: "Run") -> str | None:
    """Why a run cannot be continued, or None if it can."""
    undoable = run.journal.undoable
    return UNDOABLE.format(steps=", ".join(map(repr, undoable))) if undoable else None


def go_on(run: "Run", input_: bytes) -> None:
    """Stage that a run whose pass is over goes on with another input."""
    partition, ledger, standing = run.partition, run.partition.ledger, run.standing
    before = run.journal
    if partition.services.children.used:
        partition.services.children.left_alone(run)
    group = run.staged = partition.commits.open_group()
    for sequence in range(1, before.next):
        group.delete("journal", ledger.entry(run.number, sequence))
    for step in run.memos:
        group.delete("memo", ledger.step(run.number, step))
    run.memos.clear()
    count = 1 if before.continued is None else before.continued.number + 1
    continued = Continued(partition.wall(), count, input_, standing.steps_done)
    run.journal = Journal()
    run.journal.continued = continued
    run.put("journal", ledger.entry(run.number, 0), *continued.encode())
    standing.state = State.RUNNING
    standing.waiting_on = standing.step = None
    standing.attempt = 0
    if standing.patches is not None:
        partition.unfinished.patched(run.submission, standing.patches, -1)
        standing.patches = None
    standing.fingerprint = run.workflow.fingerprint
    run.store_standing()
    run.compensators = None
    run.rewind()
    if partition.feed is not None:
        told = EventKind.RUN_CONTINUED, run.submission, standing
        emitter.run_changed(partition.feed, run.staged, *told)
