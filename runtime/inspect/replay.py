"""Replay: check whether changed code still fits the runs of earlier code.

The workflow is driven against the history of a run, and its calls and its end are compared with the
history. Users call it as `keyrun.testing.replay`.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InvalidHistory, NonDeterminism
from keyrun.runtime.execution.driver import one_pass
from keyrun.runtime.execution.dry_run import DryRun
from keyrun.runtime.inspect.history import History
from keyrun.runtime.pass_end import CancelVerdict, Continuation, Unwind
from keyrun.runtime.records.exported import Records
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.redaction import Redact, Redaction
from keyrun.runtime.run.branch import contradiction_text
from keyrun.runtime.run.continue_as import input_of
from keyrun.runtime.run.run import Run
from keyrun.runtime.texts import workflow_error
from keyrun.runtime.user_errors import is_fatal
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.storage.payload import PayloadCodec, PayloadError, PayloadTypeError, Transform


@attrs.frozen(kw_only=True)
class Replayed:
    """Describe how far a replay came."""

    run_id: str
    """The id of the run."""
    state: State
    """The state in which the run ended, or `running` if the journal ended first."""
    outcomes: int
    """The number of journaled outcomes that the workflow received."""
    asks: tuple[str, ...] = ()
    """The calls that the workflow waits for at the end of the journal."""


async def replay(
    history: History,
    workflow: Workflow[Any, Any],
    *,
    given: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
    redact: Redact | None = None,
) -> Replayed:
    """Check that the code of a workflow fits a run of earlier code. No step runs.

    - `history`: the result of `await rt.history(run_id)`, of a run that has ended or not, or of
      `History.load(path)`.
    - `workflow`: the workflow with the code to check.
    - `given`: values of steps that the journal does not have: `given={"step": value}`. At a step
      without a value, the replay of a run that has ended raises `NonDeterminism`, and the replay of
      an unfinished run stops.
    - `transform`, `redact`: those of the runtime that wrote the history.

    Raises `NonDeterminism` if the code makes another call than the journal has, or ends in another
    way than the run did. A run that has not ended is replayed to the end of its journal. Further
    calls there are no contradiction. `ctx.patched` answers as it would if the run resumed with this
    code.
    """
    records = _replayable(history, workflow)
    dry = DryRun(records, workflow, PayloadCodec(transform), given or {}, Redaction(redact))
    input_ = _read_input(dry)
    with trio.CancelScope() as scope:
        await one_pass(dry, input_, scope, _judge)
    return Replayed(
        run_id=dry.run_id,
        state=dry.came_to,
        outcomes=dry.outcomes,
        asks=tuple(sorted(dry.asks)),
    )


def _replayable(history: History, workflow: Workflow[Any, Any]) -> Records:
    if not isinstance(history, History):
        raise TypeError(
            "replay requires the result of `await runtime.history(run_id)` or of "
            f"History.load(path), got {history!r}"
        )
    if not isinstance(workflow, Workflow):
        raise TypeError(f"replay requires a workflow made with @workflow, got {workflow!r}")
    records = history.whole()
    about = records.submission
    if about.workflow != workflow.name:
        raise InvalidHistory(
            f"this is the history of a run of {about.workflow!r}, but the workflow is "
            f"{workflow.name!r}; pass the workflow of the run",
            run_id=about.run_id,
        )
    if workflow.kind == "machine":
        raise InvalidHistory(
            f"{workflow.name!r} is a machine: the store has only its latest turn, so there is "
            "nothing to compare the code with; test its turns with open_test_runtime()",
            run_id=about.run_id,
        )
    return records


def _read_input(run: "DryRun") -> Any:
    try:
        return run.partition.codec.decode(input_of(run), run.workflow.input_type)
    except (PayloadError, PayloadTypeError) as error:
        raise run.contradiction(
            f"the code cannot read the input of the run: {error}; if its runtime has a transform, "
            "pass it to replay(transform=...)"
        ) from error


def _judge(run: Run, result: Any, failure: Failure | None) -> None:
    """Set the state that the pass came to. Raise `NonDeterminism` if the history contradicts it."""
    assert isinstance(run, DryRun)
    try:
        run.came_to = _state(run, result, failure)
    except NonDeterminism as error:
        if run.new and run.journal.expected is None and run.journal.unread() is None:
            error.add_note(
                f"The journal does not have {_named(run.new)}. If you added that on purpose, pass "
                f"its value: replay(..., given={{{run.new[0]!r}: ...}})"
            )
        raise


def _named(idents: list[str]) -> str:
    return " and ".join(map(repr, sorted(idents)))


def _state(run: DryRun, result: Any, failure: Failure | None) -> State:
    decision, unread = run.decision, run.journal.unread()
    if unread is None and decision is None and run.journal.expected is not None:
        unread = run.journal.expected.next()
    status = run.records.status
    was = None if status is None else _end_of(run, status)
    if isinstance(decision, NonDeterminism):
        raise decision
    if decision is None and run.unwinding is Unwind.LEAVE:
        asks = _named(run.asks)
        if unread is not None:
            raise run.contradiction(contradiction_text(run.journal, unread, asks))
        if was is not None:
            raise run.contradiction(
                f"the run ended as {was.text}, but the code asks for {asks} instead"
            )
        return State.RUNNING
    if unread is not None:
        error = run.contradiction(contradiction_text(run.journal, unread, None))
        if failure is not None and failure.traceback:
            error.add_note(failure.traceback)
        raise error
    if isinstance(decision, Continuation):
        if was is not None:
            raise run.contradiction(
                f"the run ended as {was.text}, but the code calls continue_as instead"
            )
        return State.RUNNING
    if isinstance(decision, CancelVerdict):
        return _compare(run, was, _cancelled(decision.reason))
    if isinstance(decision, Failure):
        failure = decision
    elif failure is None:
        try:
            canonical = run.partition.codec.canonical(result, run.workflow.result_type)
        except BaseException as unfit:
            if is_fatal(unfit):
                raise
            failure = workflow_error(unfit, run.partition.redaction)
        else:
            return _compare(run, was, _succeeded(canonical, result))
    return _compare(run, was, _failed(failure), failure)


@attrs.frozen
class End:
    """The end of a run: `same` is what a second end must have in common with it, `text` describes
    it."""

    state: State
    same: Any
    text: str


def _compare(run: DryRun, was: End | None, end: End, failure: Failure | None = None) -> State:
    """Return the state that the code came to. Raise `NonDeterminism` if the run ended
    differently."""
    if was is None and (failure is None or failure.kind is not FailureKind.WORKFLOW_ERROR):
        return end.state
    if was is not None and (was.state, was.same) == (end.state, end.same):
        return end.state
    before = "had not ended by itself" if was is None else f"ended as {was.text}"
    error = run.contradiction(f"the run {before}, but the code ends as {end.text}")
    if failure is not None and failure.traceback:
        error.add_note(failure.traceback)
    raise error


def _end_of(run: DryRun, status: StatusRecord) -> End | None:
    """Return the end of the run. None if it has not ended, or if something other than its code
    ended it."""
    failure = status.failure
    if not status.state.terminal:
        return None
    if status.state is State.CANCELLED:
        return None if status.reason is None else _cancelled(status.reason)
    if failure is not None:
        return None if failure.kind is FailureKind.RUN_TIMEOUT else _failed(failure)
    assert status.result is not None
    stored = run.partition.codec.decode(status.result)
    return _succeeded(run.partition.codec.canonical(stored), stored)


def _cancelled(reason: str) -> End:
    return End(State.CANCELLED, reason, f"cancelled: {reason}")


def _failed(failure: Failure) -> End:
    own = failure.kind is FailureKind.WORKFLOW_ERROR
    # The text of an error of the code may name objects by their address.
    same = (failure.kind, failure.step, failure.error_type, None if own else failure.reason)
    return End(State.FAILED, same, f"failed ({failure.kind}): {failure.reason}")


def _succeeded(canonical: bytes, result: Any) -> End:
    return End(State.SUCCEEDED, canonical, f"succeeded with {result!r}")
