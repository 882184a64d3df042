"""Attempts: call the function of a step until the step has its outcome.

Before an attempt, the run waits for the gate of the step's policies, for a resume if it is paused,
and for a slot. A suspect, a step that crashes interrupted twice, also waits until no other suspect
runs. After an attempt, its outcome is staged, and the retry policy decides whether another follows.
"""

from typing import TYPE_CHECKING, Any, NoReturn

import trio

from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.events import emitter
from keyrun.runtime.internal_errors import is_internal
from keyrun.runtime.pass_end import Halt, Unwind
from keyrun.runtime.records.journal_entry import CallRecord
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.wait import BACKOFF, Wait
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.runtime.steps.invocation import (
    Exited,
    Overrun,
    Raised,
    Returned,
    Started,
    attempt,
    finish,
)
from keyrun.runtime.steps.outcome import (
    end_span,
    failed,
    interrupted,
    note_attempted,
    succeeded,
)
from keyrun.runtime.user_errors import is_cancellation, is_fatal
from keyrun.runtime.values import Obstacle

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch

_RETRY = object()


async def announce(run: Run, current: CurrentStep) -> bool:
    """Make the start marker of an attempt durable before the attempt begins. This is for the first
    step after a crash: it finds a step that ends the process at once. Return whether the attempt
    may begin. Meanwhile the attempt holds a slot, so that no more attempts are announced than could
    run."""
    slots = run.partition.slots
    slots.free -= 1
    try:
        current.mark()
        group = run.staged
        assert group is not None
        await (group.wait() if run.wait_slot is None else group.wait_in(run.wait_slot))
    except BaseException:
        current.unmark()
        raise
    finally:
        slots.give()
    if run.is_stopped() or not slots.free:
        current.unmark()
        return False
    run.careful = False
    return True


async def attempts(
    branch: "Branch",
    step: StepFunction[..., Any],
    ident: str,
    memory: CallRecord,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    started: Started | None = None,
) -> Any:
    """Make attempts until the step has a value, or raise `StepFailed`. `started` is an attempt that
    was started inline. It counts as the first."""
    run = branch.run
    if run.is_dry_run:
        if step.set.compensate is not None:
            run.compensated_by(ident, step)
        return await run.dry_run_step(step, ident)
    while True:
        if memory.next_attempt is not None:
            now = run.partition.steady()
            await run.wait(Wait(BACKOFF, ident, timer=memory.next_attempt, now=now))
            memory.next_attempt = None
        attempt = _try(branch, step, ident, memory, args, kwargs, started)
        if step.guarded:
            from keyrun.runtime.steps.gated import guarded

            passed = None if started is None else started.passed
            attempt = guarded(run, step, ident, memory, attempt, passed, _RETRY)
        value = await attempt
        if value is not _RETRY:
            return value
        started = None


async def _try(
    branch: "Branch",
    step: StepFunction[..., Any],
    ident: str,
    memory: CallRecord,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    started: Started | None,
) -> Any:
    """Make one attempt, when it has a slot and, if it is a suspect, no other suspect runs. Return
    its value, or _RETRY if another attempt has to follow. Raise `StepFailed` if none may."""
    run = branch.run
    partition = run.partition
    if started is None:
        if run.staged is not None and not run.staged.durable:
            await run.staged.wait()
        if run.is_stopped():
            await ready(run)
    suspect = memory.interruptions >= 2
    if memory.interruptions:
        limit = run.submission.limits.max_interruptions
        once = step.set.at_most_once
        if once or memory.interruptions_alone >= limit:
            raise interrupted(run, ident, memory, at_most_once=once)
    gate = partition.host.gates.of(step) if step.guarded and started is None else None
    # An attempt that waits after its gate let it through asks the gate again before it begins.
    is_late = False
    slots = partition.slots
    if suspect:
        suspects = partition.host.suspects
        if gate is not None and suspects.locked():
            gate.set_back()
            is_late = True
        run.block(ident, Obstacle.SUSPECT)
        try:
            await suspects.acquire()
        finally:
            run.unblock(ident)
    try:
        if started is not None and started.current.until is not None:
            pass  # it has its slot
        elif slots.free:
            slots.free -= 1
        else:
            if gate is not None and not is_late:
                gate.set_back()
                is_late = True
            rank = step.set.priority
            run.block(ident, Obstacle.SLOT)
            began = trio.current_time()
            try:
                await slots.take(run.submission.priority if rank is None else rank)
            finally:
                run.unblock(ident)
                if run.metrics is not None:
                    wait = run.metrics.step(step.set.name).slot_wait
                    wait.add(trio.current_time() - began)
        if is_late and gate is not None and not gate.begins_late():
            slots.give()
            return _RETRY
        if started is not None:
            current, done = started.current, started.done
        else:
            current = CurrentStep(run, step, ident, memory.attempts + 1, suspect)
            done = None
        try:
            if step.careful or suspect or run.careful:
                current.mark()
                await run.gate()
            # The run may have been paused since the gate, and a paused run must not hold a slot.
            if run.is_stopped() and done is None:
                return _RETRY
            run.begin()
            run.current[ident] = current
            if step.set.compensate is not None:
                note_attempted(run, step, ident)
            return await _attempt(branch, step, memory, current, args, kwargs, done)
        finally:
            # First, because other partitions share the slots, and the lines below may raise.
            if slots.waiting:
                slots.give()
            else:
                slots.free += 1
            ran = run.current.pop(ident, None) is not None
            current.over = True
            if ran:
                run.careful = False
            if run.queue.holder is current:
                run.queue.holder = None
            leaves = run.unwinding is Unwind.LEAVE or partition.failure is not None
            cut = ran and memory.attempts < current.attempt and leaves
            # If a drain or a failed store cuts off an `at_most_once` step, its marker stays: it
            # must not run again.
            stays = current.marked and cut and step.set.at_most_once
            if current.marked and not stays:
                current.unmark()
            # The span of an attempt whose marker stays is exported by the next open.
            if current.span is not None and not stays and partition.failure is None:
                end_span(run, current.span)
            if run.waiting_branches:
                run.leave_if_asked()
    finally:
        if suspect:
            partition.host.suspects.release()


async def _attempt(
    branch: "Branch",
    step: StepFunction[..., Any],
    memory: CallRecord,
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
        if current.span is not None:
            current.span.succeeded()
    except BaseException as error:
        if is_fatal(error) or is_internal(error):
            raise
        # No outer scope cancels a shielded step, and its own timeout raises `Overrun`.
        if not current.shielded and (branch.closed or is_cancellation(error)):
            return await _cancelled(branch, step, memory, current, error)
        if run.unwinding is not None and not current.shielded:
            # The attempt was cancelled, and this error is how it stopped. It is not a failure.
            current.store_memo()
            _count_cancelled(run, step, current)
            emitter.step_cancelled(run, current)
            raise Halt from error
        if branch.bound and not current.shielded:
            await branch.yield_to_scope(current)
        if current.could_not_own(error):
            # It does not count, and the next one begins when ownership is certain.
            return _RETRY
        final = failed(run, step, memory, current, error)
        if _cut_off(run, branch, current):
            raise Halt from error
        if final is not None:
            raise final from error
        return _RETRY
    return value


async def _cancelled(
    branch: "Branch",
    step: StepFunction[..., Any],
    memory: CallRecord,
    current: CurrentStep,
    error: BaseException,
) -> NoReturn:
    """Record that an attempt was cancelled, and pass the cancellation on. Another error that the
    attempt raised then is only how it stopped."""
    run = branch.run
    if _cut_off(run, branch, current) and run.unwinding is Unwind.AGAIN:
        failed(run, step, memory, current, Overrun())
    else:
        _count_cancelled(run, step, current)
        if run.unwinding is None and (branch.closed or branch.notice() or run.going):
            branch.note_cancelled(current)
        elif run.unwinding is not None:
            emitter.step_cancelled(run, current)
    if issubclass(type(error), trio.Cancelled):
        raise error
    await trio.lowlevel.checkpoint_if_cancelled()
    raise Halt from error


def _count_cancelled(run: Run, step: StepFunction[..., Any], current: CurrentStep) -> None:
    if run.metrics is not None:
        run.metrics.attempted(step.set.name, "cancelled", current.elapsed())


def _cut_off(run: Run, branch: "Branch", current: CurrentStep) -> bool:
    """Return whether the run has exceeded its `run_timeout`, or an attempt outside of branches its
    timeout. Such an attempt sets the deadline of the run's scope, so this pass cannot continue."""
    if run.unwinding is not None:
        return False
    if trio.current_time() >= run.deadline:
        run.unwinding = Unwind.DEADLINE
        run.status.step, run.status.attempt = current.step, current.attempt
    elif not branch.apart and run.scope.cancel_called:
        run.unwinding = Unwind.AGAIN
    else:
        return False
    return True


async def ready(run: Run) -> None:
    """Return when the next step may start: everything staged is durable, and the run is not
    paused."""
    await run.gate()
    while run.is_stopped():
        await run.hold()
