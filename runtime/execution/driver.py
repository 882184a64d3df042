"""The driver: calls the workflow function of a run until the run ends or leaves memory."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import trio

from keyrun.runtime.errors import (
    ChildCancelled,
    ChildFailed,
    NonDeterminism,
    StepFailed,
)
from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.execution.compensation import decide, undo
from keyrun.runtime.execution.context import Context
from keyrun.runtime.internal_errors import from_user, is_internal
from keyrun.runtime.pass_end import CancelVerdict, Continuation, Halt, Unwind
from keyrun.runtime.run.branch import Branch, contradiction_text
from keyrun.runtime.run.continue_as import continue_with, input_of, why_not_continued
from keyrun.runtime.run.quarantine import quarantine, quarantine_input
from keyrun.runtime.run.run import NOT_DRIVEN, Run
from keyrun.runtime.run.settlement import settle
from keyrun.runtime.texts import workflow_error
from keyrun.runtime.user_errors import is_cancellation, is_fatal, is_user_error, without
from keyrun.runtime.values import Failure, FailureKind, QuarantineCause, State
from keyrun.storage.errors import StoreError
from keyrun.storage.payload import UNFIT

Conclude = Callable[[Run, Any, Failure | None], bool | None]

# Looking a member up in its enum takes as long as a call.
_RUNNING, _SUCCEEDED = State.RUNNING, State.SUCCEEDED


def drive(run: Run) -> Awaitable[bool | None]:
    """Drive a run in the scope of its actor. The awaitable gives True if the run has ended, False
    if it waits or is paused, and None if it has to be driven again. Then the scope may be
    cancelled."""
    if run.status.started_at is None and run.is_stopped():
        return _stay(run)
    if run.journal.undoing is not None:
        return undo(run)
    try:
        input_ = run.partition.codec.decode(input_of(run), run.workflow.input_type)
    except UNFIT as error:
        return _hold_for_input(run, error)
    instances = run.partition.services.instances
    if instances is not None and not instances.enter(run):
        return _stay(run)
    if run.workflow.checkpoint is not None and run.checkpointer is None:
        from keyrun.runtime.policies.checkpoint import Checkpointer

        run.checkpointer = Checkpointer(run.workflow.checkpoint)
    _start(run)
    slot = run.wait_slot = run.partition.wait_slot()
    return one_pass(run, input_, slot.scope)


async def _stay(run: Run) -> bool:
    """Keep a run that is paused before it begins. The queue of its key is woken by a resume."""
    if run.status.cancel_requested:
        settle(run, State.CANCELLED)
        return True
    return False


async def _hold_for_input(run: Run, error: BaseException) -> bool | None:
    """Quarantine a run because the input type of its workflow raised `error`, unless the run was
    cancelled."""
    if run.status.cancel_requested:
        return _end(run, State.CANCELLED)
    quarantine_input(run, error)
    return False


async def one_pass(
    run: Run, input_: Any, scope: trio.CancelScope, conclude: Conclude | None = None
) -> bool | None:
    """Call the workflow function once, in `scope`, and stage the result. Return None if another
    pass has to follow."""
    run.scope = scope
    run.scope_timed = run.scope_cancelled = False
    result: Any = None
    failure: Failure | None = None
    branch = Branch(run)
    try:
        if run.status.cancel_requested:
            run.unwind(Unwind.CANCEL)
        if run.deadline < inf:
            scope.deadline = run.deadline
            run.scope_timed = True
        if run.unwinding is not None or run.scope_timed:
            await trio.lowlevel.checkpoint_if_cancelled()
        workflow = run.workflow
        if run.journal.continued is not None:
            # The old journal must be removed durably first. This also lets other tasks run, if a
            # workflow does nothing but call `continue_as`.
            await run.gate()
        context = Context(branch, input_)
        try:
            if workflow.takes_input:
                result = await workflow.function(context, input_)
            else:
                result = await workflow.function(context)
        except (StepFailed, ChildFailed, ChildCancelled) as error:
            failure = error.failure
        except Halt:
            if run.decision is None or run.unwinding is not None:
                raise
        except Exception as error:
            # If not of this store, a StoreError is of one that the workflow uses itself.
            if issubclass(type(error), StoreError) and run.partition.failure is not None:
                raise
            failure = workflow_error(error, run.partition.redaction)
        except BaseException as error:
            from_user(error)
            if scope.cancel_called or not is_user_error(error):
                raise
            failure = _failure_in(run, error, cancelled=False)
        while conclude is None and run.is_held():
            # A paused run does not end. It comes here if its last step was running when it was
            # paused, or because of a time limit.
            await run.hold()
    except Halt:
        pass
    except StoreError:
        raise
    except BaseException as error:
        failure = _failure_in(run, error, cancelled=scope.cancel_called)
    finally:
        branch.close()
        run.scope = NOT_DRIVEN
        # Only a deadline or an unwinding can have cancelled it, and reading it costs more than a
        # step.
        if run.scope_timed or run.unwinding is not None:
            run.scope_cancelled = scope.cancel_called
            scope.deadline = inf
    if run.decision is not None:
        run.raise_internal()
    return (conclude or _conclude)(run, result, failure)


def _failure_in(run: Run, error: BaseException, *, cancelled: bool) -> Failure | None:
    """Return the failure for an error that is not an `Exception`, without the exceptions in it that
    only end the pass, which a nursery of the workflow has wrapped. Raise the error if it is not an
    error of the workflow. `cancelled` says whether the scope of the pass was cancelled."""
    if is_fatal(error) or is_internal(error):
        raise error
    if not cancelled and is_cancellation(error):
        # The whole runtime ends.
        raise error
    if not run.is_dry_run:
        # The error may have left a step that has not given back the state of the key.
        run.queue.holder = None
    rest = without(error, (Halt, trio.Cancelled) if cancelled else Halt)
    return None if rest is None else workflow_error(rest, run.partition.redaction)


def _start(run: Run) -> None:
    status, partition = run.status, run.partition
    if status.started_at is None:
        now = status.started_at = partition.wall()
        limit = run.submission.limits.run_timeout
        status.deadline = None if limit is None else partition.steady() + limit
        status.state = _RUNNING
        if not run.journal.memories and run.journal.turn is None:
            status.fingerprint = run.workflow.fingerprint()
        if run.metrics is not None and status.generation == 1:
            run.metrics.started(
                run.number, now - run.submission.submitted_at - run.submission.delay
            )
        if limit is not None:
            run.store_status()
        if partition.feed is not None and (status.generation > 1 or not run.journal.memories):
            emitter.started(partition.feed, run)
    if status.deadline is not None:
        rest = status.deadline - partition.steady()
        limit = run.submission.limits.run_timeout
        # A clock that was set back must not extend the deadline.
        run.deadline = trio.current_time() + (rest if limit is None else min(rest, limit))


def _end(
    run: Run,
    state: State,
    *,
    reason: str | None = None,
    failure: Failure | None = None,
    dead: bool = False,
) -> bool | None:
    """End a run that has not succeeded, unless it has to be compensated first."""
    if run.journal.undoable and decide(run, state, reason=reason, failure=failure, dead=dead):
        return None
    settle(run, state, reason=reason, failure=failure, dead=dead)
    return True


def _conclude(run: Run, result: Any, failure: Failure | None) -> bool | None:
    decision, status = run.decision, run.status
    plain = decision is None and failure is None and run.unwinding is None
    alone = run.deadline == inf and not status.cancel_requested
    expected = run.journal.expected
    if plain and alone and (not run.journal.past or run.journal.unread() is None) and not expected:
        # Most runs end here.
        return _succeed(run, result)
    if isinstance(decision, CancelVerdict):
        return _end(run, State.CANCELLED, reason=decision.reason)
    if status.cancel_requested:
        run.partition.services.eviction.keep_in_memory(run)
        return _end(run, State.CANCELLED)
    if isinstance(decision, NonDeterminism):
        quarantine(run, decision.cause, str(decision))
        return False
    if decision is None or isinstance(decision, Continuation):
        # While the pass is cancelled, an error or a value of the workflow means nothing.
        if run.unwinding is Unwind.AGAIN:
            run.rewind()
            return None
        if run.unwinding is Unwind.LEAVE:
            return False
        if run.unwinding is Unwind.EVICT:
            return run.partition.services.eviction.leave_memory(run)
        if run.unwinding is Unwind.DEADLINE or trio.current_time() >= run.deadline:
            return _end(run, State.FAILED, failure=_out_of_time(run))
    unread = run.journal.unread()
    if unread is None and decision is None and expected is not None:
        unread = expected.next()
    if unread is not None:
        said = contradiction_text(run.journal, unread, None)
        quarantine(run, QuarantineCause.CONTRADICTION, said)
        return False
    if isinstance(decision, Failure):
        return _end(run, State.FAILED, failure=decision)
    if isinstance(decision, Continuation):
        return _continue(run, decision)
    if failure is not None:
        return _end(run, State.FAILED, failure=failure, dead=True)
    return _succeed(run, result)


def _continue(run: Run, decision: Continuation) -> bool | None:
    kept = why_not_continued(run)
    if kept is not None:
        # A shielded step completed after the workflow had called `continue_as`.
        failure = Failure(kind=FailureKind.WORKFLOW_ERROR, reason=kept)
        return _end(run, State.FAILED, failure=failure, dead=True)
    continue_with(run, decision.input)
    return None


def _succeed(run: Run, result: Any) -> bool | None:
    try:
        payload = run.partition.codec.encode(result, run.workflow.result_type)
    except UNFIT as error:
        failure = workflow_error(error, run.partition.redaction)
        return _end(run, State.FAILED, failure=failure, dead=True)
    settle(run, _SUCCEEDED, result=payload)
    return True


def _out_of_time(run: Run) -> Failure:
    status = run.status
    limit = run.submission.limits.run_timeout
    # The steady clock is never set back.
    elapsed = run.partition.steady() - (status.deadline or 0.0) + (limit or 0.0)
    last = run.journal.last_failure
    step, attempt = status.step, status.attempt or None
    if step is None and last is not None:
        step, attempt = last.step, last.attempt
    where = "" if step is None else f" at step {step!r}"
    failure = Failure(
        kind=FailureKind.RUN_TIMEOUT,
        reason=f"the run exceeded its run_timeout of {limit or 0:g} s{where} after {elapsed:.3f} s",
        step=step,
        attempt=attempt,
        elapsed=elapsed,
        cause=last,
    )
    log(run, "run_timeout", failure.reason, failure)
    return failure
