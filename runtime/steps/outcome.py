"""Outcomes of attempts: stage the value of a step, a failed attempt, or the final failure."""

from typing import TYPE_CHECKING, Any

from keyrun.actors import checks
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.errors import StepFailed, StepTimeout, TransientError, WrongTask
from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.policies.retry import DEFAULT_RETRY, Retry
from keyrun.runtime.records.journal_entry import (
    UNDOABLE,
    AttemptFailed,
    CallRecord,
    EntryKind,
    StepGaveUp,
    Timer,
    encode_step,
)
from keyrun.runtime.run.run import Run
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.runtime.steps.invocation import Overrun
from keyrun.runtime.texts import named, needs_asyncio, needs_trio, traceback_of, type_of
from keyrun.runtime.values import Failure, FailureKind
from keyrun.storage.payload import UNFIT

if TYPE_CHECKING:
    from keyrun.runtime.host.tracing import AttemptSpan


def succeeded(
    run: Run, step: StepFunction[..., Any], memory: CallRecord, current: CurrentStep, value: Any
) -> None:
    """Stage the value of a step, and keep it in the journal in memory."""
    memory.payload = stage_value(run, step, memory.fingerprint, current, value)
    memory.attempts = current.attempt
    memory.interruptions = memory.interruptions_alone = 0
    run.journal.settled(current.step, memory, EntryKind.DONE)


def note_undoable(run: Run, step: StepFunction[..., Any], ident: str) -> None:
    """Stage that a completed step has a compensation."""
    run.compensated_by(ident, step)
    run.journal.note_undoable(ident)
    awaited = run.staged
    run.note(ident, UNDOABLE)
    if run.checkpointer is not None:
        run.staged = awaited


def note_attempted(run: Run, step: StepFunction[..., Any], ident: str) -> None:
    """Stage that a step with a compensation has begun, if the workflow compensates attempted
    steps."""
    if run.workflow.compensate_on != "attempted" or run.undoing:
        return
    run.compensated_by(ident, step)
    if run.journal.undoable is None or ident not in run.journal.undoable:
        note_undoable(run, step, ident)


def stage_value(
    run: Run, step: StepFunction[..., Any], mark: int | None, current: CurrentStep, value: Any
) -> bytes:
    """Stage the value of a step, in one commit with the changed state of the key and the note that
    the step has a compensation."""
    partition, ident = run.partition, current.step
    held = run.queue.holder is current
    if held:
        current.seal_state()
    payload = partition.codec.encode(value, step.declared)
    if run.allowance is not None:
        run.allowance.take(len(payload), ident)
    wall = partition.wall
    now = wall()
    entry = encode_step(ident, now, mark, current.attempt, current.begun, payload)
    if held or step.set.compensate is not None or (run.memos and ident in run.memos):
        with partition.together():
            run.enter(entry)
            if held:
                run.queue.keep_state(run, current)
                run.queue.holder = None
            if run.memos and ident in run.memos:
                del run.memos[ident]
                run.delete("memo", partition.ledger.step(run.number, ident))
            if step.set.compensate is not None:
                note_undoable(run, step, ident)
    else:
        run.enter(entry)
    current.over = True
    run.status.steps_done += 1
    if run.metrics is not None:
        run.metrics.completed(step.set.name, now - current.begun)
    if partition.feed is not None:
        emitter.step_completed(partition.feed, run, current, now)
    if run.checkpointer is not None:
        # After the event, because events wait for the commit even if the next step does not.
        run.checkpointer.step_done(run)
    return payload


def failed(
    run: Run,
    step: StepFunction[..., Any],
    memory: CallRecord,
    current: CurrentStep,
    error: BaseException,
) -> StepFailed | None:
    """Stage a failed attempt. Return None if another attempt follows, and otherwise the error for
    the workflow."""
    ident, number = current.step, current.attempt
    memory.attempts = number
    memory.interruptions = memory.interruptions_alone = 0
    try:
        current.store_memo()
    except UNFIT as unfit:
        said = named(unfit, run.partition.redaction)
        log(run, "memo_dropped", f"the memo of step {ident!r} cannot be stored: {said}")
    policy = step.set.retry or run.workflow.retry or DEFAULT_RETRY
    failure, again = _judge(run, step, current, error, policy)
    if current.span is not None:
        current.span.failed(failure)
    feed, timed_out = run.partition.feed, issubclass(type(error), Overrun)
    if run.metrics is not None:
        outcome = "timed_out" if timed_out else "retrying" if again else "failed"
        run.metrics.attempted(step.set.name, outcome, failure.elapsed or 0.0)
    if not again:
        with run.partition.together():
            final = gave_up(run, ident, memory, failure, current.begun)
            if step.set.compensate is not None and run.workflow.compensate_on == "attempted":
                note_undoable(run, step, ident)
        if feed is not None:
            emitter.step_failed(feed, run, failure, current, timed_out=timed_out)
        return final
    if step.set.compensate is not None:
        note_attempted(run, step, ident)
    delay = policy.delay_for(run.run_id, ident, number)
    if issubclass(type(error), TransientError):
        assert isinstance(error, TransientError)
        delay = max(delay, _retry_after(error))
    memory.failure = run.journal.last_failure = failure
    retry = memory.next_attempt = Timer(run.partition.steady() + delay, delay)
    run.journal.retries += 1
    at = run.partition.wall()
    run.write(AttemptFailed(ident, at, memory.fingerprint, number, current.begun, failure, retry))
    if step.complete is not None:
        run.journal.turn_entries += (run.journal.next - 1,)
    if feed is not None:
        emitter.step_failed(feed, run, failure, current, delay=delay, timed_out=timed_out)
    log(run, "step_retrying", f"{failure.reason}; the next attempt is in {delay:.3f} s", failure)
    return None


def _retry_after(error: TransientError) -> float:
    """Return the seconds that an error asks for. A class of users may define the attribute in any
    way."""
    try:
        seconds = error.retry_after
        return float(seconds) if checks.is_number(seconds) and seconds > 0 else 0.0
    except Exception:
        return 0.0


def end_span(run: Run, span: "AttemptSpan") -> None:
    """End the span of an attempt when everything is durable that the run has staged. A process that
    is killed before that has not exported the span, and the next one reports the attempt as
    interrupted or makes it again."""
    # A run with a checkpoint policy need not know the group of its last outcome.
    staged = run.staged if run.checkpointer is None else run.partition.commits.open_group()
    span.finish(staged)


def gave_up(
    run: Run, ident: str, memory: CallRecord, failure: Failure, begun: float | None = None
) -> StepFailed:
    """Stage the final failure of a step."""
    memory.failure = run.journal.last_failure = failure
    at = run.partition.wall()
    run.write(StepGaveUp(ident, at, memory.fingerprint, memory.attempts, begun, failure))
    run.journal.settled(ident, memory, EntryKind.GAVE_UP)
    log(run, "step_failed", failure.reason, failure)
    return step_failed(run, failure)


def step_failed(run: Run, failure: Failure) -> StepFailed:
    """Return the error that the workflow receives for a step that has failed. A replay raises the
    same error."""
    kind = StepTimeout if failure.kind is FailureKind.STEP_TIMEOUT else StepFailed
    return kind(failure, run_id=run.run_id, key=run.key)


def interrupted(run: Run, ident: str, memory: CallRecord, *, at_most_once: bool) -> StepFailed:
    """Stage the failure of a step that crashes have interrupted too often, and return the error."""
    if at_most_once:
        reason = (
            f"step {ident!r} may run at most once, and a crash, or a drain that did not wait for "
            "it, interrupted it"
        )
    else:
        reason = (
            f"step {ident!r} was interrupted by {memory.interruptions_alone} crashes while it was "
            "the only suspect: it seems to end the process"
        )
    failure = Failure(
        kind=FailureKind.INTERRUPTED,
        reason=reason,
        step=ident,
        attempt=memory.attempts + 1,
        cause=memory.failure,
    )
    final = gave_up(run, ident, memory, failure)
    feed = run.partition.feed
    if feed is not None:
        if not at_most_once:
            emitter.limit_hit(feed, run, failure)
        emitter.step_failed(feed, run, failure)
    return final


def _judge(
    run: Run,
    step: StepFunction[..., Any],
    current: CurrentStep,
    error: BaseException,
    policy: Retry,
) -> tuple[Failure, bool]:
    """Return the failure of an attempt, and whether another attempt follows."""
    ident, number = current.step, current.attempt
    elapsed = current.elapsed()
    kind = FailureKind.STEP_FAILED
    redaction = run.partition.redaction
    what = named(error, redaction)
    if needs_asyncio(error):
        what += "; the step uses asyncio: declare it with @step(asyncio=True)"
    elif step.set.asyncio and needs_trio(error):
        what += "; the step uses Trio: remove asyncio=True"
    if issubclass(type(error), Overrun):
        kind = FailureKind.STEP_TIMEOUT
        what = f"took longer than its timeout of {current.timeout:g} s"
        error = TimeoutError(what)
    # A retry would not help if the value cannot be stored, or for similar mistakes in the code.
    hopeless = (*UNFIT, WrongTask)
    again = policy.retries(error) and not issubclass(type(error), hopeless)
    if not again:
        kind = FailureKind.PERMANENT_ERROR
    limits = run.submission.limits
    most = policy.max_attempts if step.set.retry else limits.max_attempts or policy.max_attempts
    if step.set.at_most_once:
        most = 1
    again = again and number < most
    reason = f"step {ident!r}, attempt {number} of {most}, after {elapsed:.3f} s: {what}"
    budget = None if run.undoing else limits.retry_budget
    if again and budget is not None and run.journal.retries >= budget:
        again = False
        kind = FailureKind.RETRY_BUDGET
        reason += f"; the run's retry budget of {budget} is used up"
    failure = Failure(
        kind=kind,
        reason=reason,
        step=ident,
        attempt=number,
        error_type=type_of(error),
        traceback=traceback_of(error, redaction) if error.__traceback__ else None,
        elapsed=elapsed,
    )
    return failure, again
