"""Step execution: a call of `ctx.step`, from the journal to the outcome.

the call ──► in the journal? ── yes ──► its outcome, in the order of the journal
                 │ no
                 ▼
    gate (staged records are durable) ──► hold (paused) ──► slot ──► attempt
                 ▲                                                     │
                 └── backoff ◄── failed, attempts left ◄───────────────┤
                                                                       ▼
                                     the outcome is staged, and the workflow resumes at once
"""

from typing import TYPE_CHECKING, Any
from zlib import crc32

from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.errors import NonDeterminism
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import CallKind, CallRecord, EntryKind
from keyrun.runtime.run.branch import contradiction_text
from keyrun.runtime.run.expected import REMEDY
from keyrun.runtime.run.run import Run
from keyrun.runtime.steps.attempts import announce, attempts
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.runtime.steps.inline_start import start_inline, too_many_iterations
from keyrun.runtime.steps.invocation import Started
from keyrun.runtime.steps.outcome import step_failed
from keyrun.runtime.texts import unreadable_outcome
from keyrun.runtime.values import QuarantineCause
from keyrun.storage.payload import UNFIT

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch

# Looking a member up in its enum takes as long as a call.
_STEP, _DONE = CallKind.STEP, EntryKind.DONE


async def perform(
    branch: "Branch", step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Execute one durable step.

    The usual step is not in the journal, and nothing delays it. Its function is called right here.
    If it returns without suspending, it needs no slot, because no other task could run meanwhile.
    Otherwise `attempts` continues with it.
    """
    run = branch.run
    partition = run.partition
    try:
        branch.check()
        if run.pending and not branch.apart:
            # From here on the run waits for a slot, which the gate of the key counts.
            partition.suspension.callback = None
        ident = branch.step = branch.name(step.set.name)
        mark = _fingerprint(run, args, kwargs) if args or kwargs else 0
        run.begun_steps += 1
        journal = run.journal
        is_new = journal.expected is not None and branch.ask(ident)
        memory = journal.memories.get(ident)
        if memory is not None:
            _check_against(run, ident, memory, mark)
            if memory.outcome is not None:
                return await replayed(run, step, ident, memory)
            branch.check_place(ident, memory)
        if branch.bound:
            if step.set.compensate is not None:
                # If the step is cut off before it starts, a dry run must find its compensation.
                run.compensated_by(ident, step)
            await branch.admit()
        if is_new:
            await branch.start_new(ident)
        if run.begun_steps > run.submission.limits.most_iterations:
            raise too_many_iterations(run, run.begun_steps, "the run called step", ident)
        inline = step.starts_inline and not branch.apart and (memory is None or memory.unsuspected)
        if run.careful and run.is_dry_run:
            inline = False
        staged = run.staged
        if inline and staged is not None and not staged.durable:
            await (staged.wait() if run.wait_slot is None else staged.wait_in(run.wait_slot))
        # In this order, because a dry run has no slots.
        if not inline or not partition.slots.free or run.is_stopped():
            memory = journal.remember(ident, mark)
            return await attempts(branch, step, ident, memory, args, kwargs)
        current = CurrentStep(run, step, ident)
        if run.careful and not await announce(run, current):
            memory = journal.remember(ident, mark)
            return await attempts(branch, step, ident, memory, args, kwargs)
        value = await start_inline(run, step, current, mark, args, kwargs, current.begin_wait)
        if type(value) is not Started:
            return value
        memory = journal.remember(ident, mark)
        return await attempts(branch, step, ident, memory, args, kwargs, value)
    except BaseException as error:
        run.guard(error)
        raise


def _fingerprint(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Return a checksum of the arguments of a step, or None if they cannot be encoded."""
    try:
        return crc32(run.partition.codec.canonical_call(args, kwargs))
    except UNFIT:
        return None


def _check_against(run: Run, ident: str, memory: CallRecord, mark: int | None) -> None:
    """Quarantine the run if its journal has another call, or other arguments, under this name."""
    if memory.call is not _STEP:
        kind = memory.call.name.lower()
        said = f"the journal has {ident!r} as a {kind}, but the code calls a step"
    elif memory.fingerprint is None or mark is None or memory.fingerprint == mark:
        return
    else:
        said = f"the journal has the step {ident!r} with other arguments; {REMEDY}"
    raise run.contradicted(said, ident)


async def replayed(run: Run, step: StepFunction[..., Any], ident: str, memory: CallRecord) -> Any:
    """Give the outcome of a step back when its turn comes: its value, or `StepFailed`."""
    if step.set.compensate is not None:
        # First: a sibling that failed may cut it off here, and it is undone all the same.
        run.compensated_by(ident, step)
    journal = run.journal
    if run.is_dry_run or not journal.may_deliver(ident):
        await given_back(run, ident, memory)
    else:
        journal.deliver(memory)
    if memory.outcome is _DONE:
        if run.allowance is not None:
            run.allowance.used += len(memory.payload)
        return read_outcome(run, ident, memory.payload, step.declared)
    assert memory.failure is not None
    raise step_failed(run, memory.failure)


async def given_back(run: Run, ident: str, memory: CallRecord) -> None:
    """Return when it is the turn of a journaled outcome."""
    if run.is_dry_run:
        # All branches ask for their calls before one of them is cut off by another.
        await run.let_others_ask()
    missing = await run.journal.turn_of(ident)
    if missing is not None:
        if not run.going:
            raise Halt
        raise run.contradicted(contradiction_text(run.journal, missing, ident), ident)
    run.journal.deliver(memory)


def read_outcome(run: Run, ident: str, payload: bytes, declared: Any = Any) -> Any:
    """Return the journaled outcome of a call. Halt if its declared type does not accept it."""
    try:
        return run.partition.codec.decode(payload, declared)
    except UNFIT as error:
        unreadable = NonDeterminism(
            unreadable_outcome(ident, error, run.partition.redaction),
            run_id=run.run_id,
            key=run.key,
            step=ident,
            cause=QuarantineCause.OUTCOME,
        )
        raise run.halt(unreadable) from error
