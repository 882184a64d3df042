"""Stepping: what happens when a workflow asks for a step, from the journal to the outcome.

asked for ──► journaled? ── yes ──► given back in journal order
                 │ no
                 ▼
    gate (what was staged is durable) ──► hold (paused) ──► slot ──► attempt
                 ▲                                                     │
                 └── backoff ◄── failed, attempts left ◄───────────────┤
                                                                       ▼
                                     outcome staged, given to the workflow at once
"""

from typing import TYPE_CHECKING, Any
from zlib import crc32

import trio

from keyrun.runtime import telling
from keyrun.runtime.attempt import (
    Exited,
    Overrun,
    Raised,
    Returned,
    attempt,
    finish,
    only_cancelled,
)
from keyrun.runtime.bugs import is_bug_in_step
from keyrun.runtime.current import CurrentStep, enter, leave, running
from keyrun.runtime.errors import NonDeterminism
from keyrun.runtime.guarding import guarded
from keyrun.runtime.journal import Call, Entry, Memory
from keyrun.runtime.outcome import failed, interrupted, stage_value, step_failed, succeeded
from keyrun.runtime.run import Halt, Run, Unwind
from keyrun.runtime.step import StepFunction
from keyrun.runtime.turnstile import Pass
from keyrun.runtime.values import Failure, FailureKind
from keyrun.runtime.wording import named

if TYPE_CHECKING:
    from keyrun.runtime.branch import Branch

Started = tuple[CurrentStep, Raised | Returned]
"""An attempt that was begun with no more ado than a call, and what came of it."""

_RETRY = object()
_FOREVER = float("inf")
current_task = trio.lowlevel.current_task


def halt(run: Run, decision: Any) -> Halt:
    """Decide how the pass ends; the first decision counts."""
    if run.decision is None:
        run.decision = decision
    return Halt()


async def perform(
    branch: "Branch", step: StepFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One durable step.

    The usual one is new, nothing stands in its way, and it waits for nothing. It is started right
    here; if it is done then, no slot was taken, since nobody else could run meanwhile. Else it is
    gone on with as any other attempt.
    """
    run, engine = branch.run, branch.run.engine
    # What `check` looks at, as far as it costs next to nothing.
    if (
        run.unwinding is not None
        or run.deadline < _FOREVER
        or branch.closed
        or running.get() is not None
        or current_task() is not branch.task
    ):
        branch.check()
    if run.pending:
        # From here on it waits for a slot, which is what the entrance counts.
        engine.suspension.callback = None
    ident = branch.name(step.set.name)
    mark = _fingerprint(run, args, kwargs) if args or kwargs else 0
    run.begun_steps += 1
    journal = run.journal
    memory = journal.memories.get(ident)
    if memory is not None:
        _check_against(run, ident, memory, mark)
        if memory.outcome is not None:
            return await replayed(run, step, ident, memory)
    if branch.bound:
        await branch.admit()
    limits = run.submission.limits
    most = limits.max_iterations
    if most is not None and run.begun_steps > most:
        reason = f"the run asked for step {run.begun_steps}, and max_iterations is {most}"
        raise halt(run, Failure(kind=FailureKind.ITERATION_LIMIT, reason=reason, step=ident))
    sprints = step.sprints and not branch.apart
    if memory is not None and (memory.attempts or memory.interruptions):
        sprints = False
    if sprints and run.staged is not None and not run.staged.durable:
        await run.staged.wait()
    if not sprints or run.careful or run.stopped or not engine.slots.free:
        memory = journal.remember(ident, mark)
        return await attempts(branch, step, ident, memory, args, kwargs)
    if run.pending:
        run.begin()
    current = CurrentStep(run, ident, 1, engine.wall(), False, step.timeout_in(limits))
    suspension = engine.suspension
    done: Raised | Returned
    token = enter(current)
    suspension.callback = current.wait_begins
    try:
        value = await step.function(*args, **kwargs)
        if not current.marked:
            suspension.callback = None
            payload = stage_value(run, step, mark, current, value)
            journal.fresh.append((ident, mark, payload))
            leave(token)
            return value
        done = Returned(value)
    except BaseException as error:
        suspension.callback = None
        done = Raised(error)
    leave(token)
    memory = journal.remember(ident, mark)
    return await attempts(branch, step, ident, memory, args, kwargs, (current, done))


async def attempts(
    branch: "Branch",
    step: StepFunction[..., Any],
    ident: str,
    memory: Memory,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    started: Started | None = None,
    passed: Pass | None = None,
) -> Any:
    """Try until there is a value, or `StepFailed`. `started` is an attempt that was made, and
    `passed` what it holds if the step is guarded."""
    run = branch.run
    if run.rehearsed:
        return await run.rehearse(step, ident)
    while True:
        if memory.retry is not None:
            due, delay = memory.retry
            await run.wait(min(due - run.engine.wall(), delay), "backoff")
            memory.retry = None
        attempt = _try(branch, step, ident, memory, args, kwargs, started)
        if step.guarded:
            attempt = guarded(run, step, ident, memory, attempt, passed, _RETRY)
        value = await attempt
        if value is not _RETRY:
            return value
        started = passed = None


def _fingerprint(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """A number that tells other arguments, or None if they cannot be told."""
    try:
        return crc32(run.engine.codec.canonical([list(args), kwargs]))
    except (TypeError, ValueError):
        return None


def _check_against(run: Run, ident: str, memory: Memory, mark: int | None) -> None:
    """Halt if the journal says that something else was asked for under this identity."""
    if memory.call is not Call.STEP:
        said = f"the journal has {ident!r} as {memory.call.name.lower()}, the code asks for a step"
    elif memory.fingerprint is None or mark is None or memory.fingerprint == mark:
        return
    else:
        said = (
            f"the step {ident!r} is asked for with other arguments than the journal has; what is "
            "between steps must decide the same way each time it runs"
        )
    raise halt(run, contradiction(run, said, ident))


async def replayed(run: Run, step: StepFunction[..., Any], ident: str, memory: Memory) -> Any:
    """Give the outcome of a step back when its turn comes: its value, or `StepFailed`."""
    await given_back(run, ident, memory)
    if step.set.compensate is not None:
        run.compensators[ident] = step
    if memory.outcome is Entry.DONE:
        if run.allowance is not None:
            run.allowance.used += len(memory.payload)
        try:
            return run.engine.codec.decode(memory.payload, step.declared)
        except Exception as error:
            said = (
                f"the journal has an outcome of {ident!r} that the step cannot have: {named(error)}"
            )
            raise halt(run, contradiction(run, said, ident)) from error
    assert memory.failure is not None
    raise step_failed(run, memory.failure)


async def given_back(run: Run, ident: str, memory: Memory) -> None:
    """Return when it is the turn of a journaled outcome."""
    missing = await run.journal.turn_of(ident)
    if missing is not None:
        if not run.going:
            raise Halt
        said = (
            f"the journal has an outcome of {missing!r} next, and the workflow asks for {ident!r} "
            "instead"
        )
        raise halt(run, contradiction(run, said, ident))
    run.journal.deliver(memory)


def contradiction(run: Run, said: str, ident: str) -> NonDeterminism:
    """What is wrong with code that asks for something else than its journal has."""
    return NonDeterminism(said, run_id=run.run_id, key=run.key, step=ident)


async def _try(
    branch: "Branch",
    step: StepFunction[..., Any],
    ident: str,
    memory: Memory,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    started: Started | None,
) -> Any:
    """One attempt with all that is around it: its value, or _RETRY, or StepFailed."""
    run = branch.run
    engine = run.engine
    if started is None:
        if run.staged is not None and not run.staged.durable:
            await run.staged.wait()
        if run.stopped:
            await ready(run)
    suspect = memory.interruptions >= 2
    if memory.interruptions:
        limit = run.submission.limits.max_interruptions
        once = step.set.at_most_once
        if once or memory.interruptions_alone >= limit:
            raise interrupted(run, ident, memory, at_most_once=once)
    if suspect:
        await engine.suspects.acquire()
    slots = engine.slots
    try:
        if started is not None and started[0].marked:
            pass  # it has its slot
        elif slots.free:
            slots.free -= 1
        else:
            rank = step.set.priority
            await slots.take(run.submission.priority if rank is None else rank)
        if started is not None:
            current, done = started
        else:
            timeout = step.timeout_in(run.submission.limits)
            current = CurrentStep(run, ident, memory.attempts + 1, engine.wall(), suspect, timeout)
            done = None
        try:
            if step.careful or suspect or run.careful:
                current.mark()
                await run.gate()
            # It may have been a while since the gate; who is held shall not hold a slot.
            if run.stopped and done is None:
                return _RETRY
            if run.pending:
                run.begin()
            run.current[ident] = current
            return await _attempt(branch, step, memory, current, args, kwargs, done)
        finally:
            ran = run.current.pop(ident, None) is not None
            current.over = True
            if ran:
                run.careful = False
            if run.line.holder is current:
                run.line.holder = None
            cut = ran and memory.attempts < current.attempt and run.unwinding is Unwind.LEAVE
            # A drain that cuts off what may run once leaves the mark: it was begun.
            if current.marked and not (cut and step.set.at_most_once):
                current.unmark()
            if run.parked:
                run.leave_if_asked()
            if slots.waiting:
                slots.give()
            else:
                slots.free += 1
    finally:
        if suspect:
            engine.suspects.release()


async def _attempt(
    branch: "Branch",
    step: StepFunction[..., Any],
    memory: Memory,
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    done: "Raised | Returned | None",
) -> Any:
    run = branch.run
    try:
        try:
            if done is None:
                value = await attempt(branch, step, current, args, kwargs)
            else:
                value = finish(run, current, done)
        except SystemExit as left:
            raise Exited(left.code) from left
        if step.complete is None:
            succeeded(run, step, memory, current, value)
        else:
            step.complete(run, memory, current, value)
    except Exception as error:
        if run.unwinding is not None and not current.shielded:
            # It was told to stop, and this is how it did: that is nobody's failure.
            current.store_memo()
            telling.step_cancelled(run, current)
            raise Halt from error
        if is_bug_in_step(error):
            raise
        if branch.bound and not current.shielded:
            await branch.yield_to_scope(current)
        final = failed(run, step, memory, current, error)
        if _cut_off(run, branch, current):
            raise Halt from error
        if final is not None:
            raise final from error
        return _RETRY
    except (trio.Cancelled, BaseExceptionGroup) as error:
        if isinstance(error, BaseExceptionGroup) and not only_cancelled(error):
            raise
        if _cut_off(run, branch, current) and run.unwinding is Unwind.AGAIN:
            failed(run, step, memory, current, Overrun())
        elif run.unwinding is None and (branch.closed or branch.notice()):
            branch.note_cancelled(current)
        elif run.unwinding is not None:
            telling.step_cancelled(run, current)
        if isinstance(error, trio.Cancelled):
            raise
        await trio.lowlevel.checkpoint_if_cancelled()
        raise Halt from error
    return value


def _cut_off(run: Run, branch: "Branch", current: CurrentStep) -> bool:
    """Whether the time of the run, or on the main line that of the attempt, is up. There the scope
    of the run carries the deadline of the attempt, so the workflow cannot go on in this pass."""
    if run.unwinding is not None:
        return False
    if trio.current_time() >= run.deadline:
        run.unwinding = Unwind.DEADLINE
        run.standing.step, run.standing.attempt = current.step, current.attempt
    elif not branch.apart and run.scope.cancel_called:
        run.unwinding = Unwind.AGAIN
    else:
        return False
    return True


async def ready(run: Run) -> None:
    """Return when the next step may start: all is durable, and nobody holds the run."""
    await run.gate()
    while run.stopped:
        await run.hold()
