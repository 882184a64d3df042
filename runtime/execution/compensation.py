"""Compensation: undo the completed steps of a run that fails or is cancelled.

1. When a step with a compensation completes, its journal gets a note. If the workflow compensates
   attempted steps, the note is written when the step begins.
2. When the run fails or is cancelled, one journal entry records how it will end and which steps are
   to be compensated. From then on, the workflow function is not called any more.
3. The compensations run one after the other, the last step first. Each is a step with an outcome of
   its own, so each is done once, also after a crash. A cancel, the deadline and the limits of the
   run do not apply to them. If one of them fails, the failure is recorded, and the rest still run.
4. The run ends as was recorded.

Only the code says which function compensates which step. After a restart, a dry run of the workflow
against its journal finds this out, without effects.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from keyrun.runtime.definitions.step import StepFunction, as_step
from keyrun.runtime.errors import NonDeterminism, StepFailed
from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.pass_end import Halt, Unwind
from keyrun.runtime.records.exported import Records
from keyrun.runtime.records.journal_entry import COMPENSATION, EntryKind, Undo, decode
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.continue_as import input_of
from keyrun.runtime.run.quarantine import quarantine, quarantine_input
from keyrun.runtime.run.run import NOT_DRIVEN, Run
from keyrun.runtime.run.settlement import settle
from keyrun.runtime.steps.attempts import attempts
from keyrun.runtime.texts import unreadable_outcome
from keyrun.runtime.values import Failure, QuarantineCause, State
from keyrun.storage.payload import UNFIT

if TYPE_CHECKING:
    from keyrun.runtime.records.journal_entry import CallRecord


@attrs.frozen(kw_only=True)
class Compensation:
    """Describe the step that a compensation undoes. A compensation receives this argument."""

    why: Literal["failed", "cancelled"]
    """Whether the run failed or was cancelled."""
    failed: str | None
    """The step that failed, if one did."""
    error: Failure | None
    """The failure of the run, if it failed."""
    step: str
    """The step to undo."""
    output: Any
    """The output of the step. None if the step did not complete."""
    left: tuple[str, ...]
    """The steps that are undone after this one."""
    run_input: Any
    """The input of the run."""


def decide(
    run: Run,
    state: State,
    *,
    reason: str | None = None,
    failure: Failure | None = None,
    dead: bool = False,
) -> bool:
    """Record how the run will end after its compensations. Return whether there is anything to
    compensate."""
    journal = run.journal
    noted = list(journal.undoable or ())
    # Steps that were cut off come last, so they are compensated first.
    noted.sort(key=lambda ident: not journal.has_outcome(ident))
    idents = run.workflow.to_undo(noted, failure)
    if not idents:
        return False
    journal.undoing = Undo(run.partition.wall(), state, reason, failure, dead, idents)
    status = run.status
    status.failure, status.waiting_on = failure, None
    if status.state is State.WAITING:
        status.state = State.RUNNING
    status.compensation = journal.compensation()
    with run.partition.together():
        run.write(journal.undoing)
        run.store_status()
    if run.partition.feed is not None:
        emitter.compensating(run.partition.feed, run, reason)
    run.rewind()
    return True


def _store_progress(run: Run) -> None:
    """Stage the progress of the compensation, if it has changed."""
    progress = run.journal.compensation()
    if run.status.compensation != progress:
        run.status.compensation = progress
        # Compensations do not count as steps of the workflow.
        run.status.steps_done = run.journal.steps_done()
        run.store_status()


async def undo(run: Run) -> bool:
    """Run the compensations that have not run, then end the run. Return whether it has ended."""
    journal, partition = run.journal, run.partition
    assert journal.undoing is not None
    _, state, reason, failure, dead, idents = journal.undoing
    run.undoing = True
    run.deadline = inf
    run.begin()
    # In a store of an earlier Keyrun, only the journal has the compensation.
    run.status.compensation, run.status.failure = journal.compensation(), failure
    try:
        run_input = partition.codec.decode(input_of(run), run.workflow.input_type)
    except UNFIT as error:
        quarantine_input(run, error)
        return False
    scope = run.scope = partition.actor_scope()
    branch = Branch(run, COMPENSATION, apart=True)
    left: list[str] = []
    try:
        compensators = run.compensators or {}
        contradiction: NonDeterminism | None = None
        if not compensators.keys() >= set(idents):
            compensators, contradiction = await _collect(run, run_input)
        for at in range(len(idents) - 1, -1, -1):
            ident = idents[at]
            step = compensators.get(ident) or run.workflow.undone_by(ident)
            if step is None:
                said = f"the code has no compensation for the step {ident!r} any more; restore it"
                cause = QuarantineCause.CONTRADICTION
                if contradiction is not None:
                    said, cause = f"{said}: {contradiction}", contradiction.cause
                quarantine(run, cause, said)
                return False
            try:
                output = _output(run, step, journal.memories.get(ident))
            except UNFIT as error:
                said = unreadable_outcome(ident, error, run.partition.redaction)
                quarantine(run, QuarantineCause.OUTCOME, said)
                return False
            given = Compensation(
                why="failed" if state is State.FAILED else "cancelled",
                failed=None if failure is None else failure.step,
                error=failure,
                step=ident,
                output=output,
                left=tuple(reversed(idents[:at])),
                run_input=run_input,
            )
            if not await _compensate(branch, step, ident, given):
                left.append(ident)
            _store_progress(run)
    except Halt:
        pass
    except trio.Cancelled:
        if not scope.cancel_called:
            raise
    finally:
        branch.close()
        run.scope = NOT_DRIVEN
        run.scope_cancelled = scope.cancel_called
        scope.deadline = inf
    run.raise_internal()
    if run.unwinding is Unwind.LEAVE:
        return False
    _end(run, state, reason, failure, dead, left)
    return True


def _end(
    run: Run, state: State, reason: str | None, failure: Failure | None, dead: bool, left: list[str]
) -> None:
    if left:
        named = ", ".join(map(repr, left))
        said = f"compensations failed, and these steps are not undone: {named}"
        log(run, "compensation_failed", said)
        cause = run.journal.last_failure
        if failure is None:
            assert cause is not None
            failure = attrs.evolve(cause, reason=said, cause=cause)
        failure = attrs.evolve(failure, left=tuple(left))
        if reason is None and state is State.FAILED:
            reason = f"{failure.reason}; {said}"
    settle(run, state, reason=reason, failure=failure, dead=dead)


async def _compensate(
    branch: Branch, step: StepFunction[..., Any], ident: str, given: Compensation
) -> bool:
    """Run the compensation of one step. Return whether it succeeded."""
    compensate = step.set.compensate
    assert compensate is not None
    name = COMPENSATION + ident
    memory = branch.run.journal.memory(name)
    if memory.outcome is None:
        try:
            await attempts(branch, as_step(compensate), name, memory, (given,), {})
        except StepFailed:
            return False
    return memory.outcome is EntryKind.DONE


def _output(run: Run, step: StepFunction[..., Any], memory: "CallRecord | None") -> Any:
    """Return the value of the step. None if it failed, or was cut off."""
    if memory is None or memory.outcome is not EntryKind.DONE:
        return None
    value = run.partition.codec.decode(memory.payload, step.declared)
    read: Callable[[Any], Any] | None = step.read
    return value if read is None else read(value)


async def _collect(
    run: Run, run_input: Any
) -> tuple[dict[str, StepFunction[..., Any]], NonDeterminism | None]:
    """Find the function that compensates each step with a dry run of the workflow. Return the place
    where the code contradicts the journal, if it does."""
    # The driver imports this module.
    from keyrun.runtime.execution.driver import one_pass
    from keyrun.runtime.execution.dry_run import DryRun

    await run.gate()
    ledger = run.partition.ledger
    rows = await ledger.scan("journal", run.record)
    entries = tuple((int.from_bytes(key[-4:], "big"), decode(fields)) for key, fields in rows)
    records = Records(run.submission, run.status, entries)
    dry = DryRun(records, run.workflow, run.partition.codec, {})
    with trio.CancelScope() as scope:
        await one_pass(dry, run_input, scope, lambda *_: None)
    decision = dry.decision
    contradiction = decision if isinstance(decision, NonDeterminism) else None
    return dry.compensators or {}, contradiction
