"""Replay: does changed code still fit the runs of earlier code?

A workflow is driven against the history of a run, and what it asks for and comes to is compared
with what the history says. For users it is `keyrun.testing.replay`.
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
from keyrun.runtime.records.exported import Records
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.run.branch import contradicted
from keyrun.runtime.run.continue_as import input_of
from keyrun.runtime.run.run import Run
from keyrun.runtime.unwinding import Unwind
from keyrun.runtime.user_errors import is_fatal
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.runtime.verdicts import CancelVerdict, Continuation, workflow_error
from keyrun.storage.payload import PayloadCodec, PayloadError, PayloadTypeError, Transform


@attrs.frozen(kw_only=True)
class Replayed:
    """How far a replay came. `state` is that of the end it came to, or `RUNNING` if the journal
    ended first; then `asks` names what the workflow waits for. `outcomes` counts those that the
    journal had and that were asked for."""

    run_id: str
    state: State
    outcomes: int
    asks: tuple[str, ...] = ()


async def replay(
    history: History,
    workflow: Workflow[Any, Any],
    *,
    given: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
) -> Replayed:
    """Check that `workflow`, as it is today, fits a run of earlier code. No step is run.

    `history` is what `await runtime.history(run_id)` gave, of any run, ended or not, or what
    `History.load(path)` read. Raises `NonDeterminism` where the code contradicts it: where it asks
    for something else than the journal has, or comes to another end than the run did. A run that
    has not ended is replayed to the end of its journal; to ask for more there is fine.

    A step that the code asks for after the end of the journal is not run, so say what it returns:
    `given={"step": value}`. `ctx.patched` answers as it would if the run resumed with this code.
    `transform` is that of the runtime.
    """
    records = _replayable(history, workflow)
    dry = DryRun(records, workflow, PayloadCodec(transform), given or {})
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
            "replay takes what `await runtime.history(run_id)` gives, or History.load(path), "
            f"got {history!r}"
        )
    if not isinstance(workflow, Workflow):
        raise TypeError(f"replay takes a workflow made with @workflow, got {workflow!r}")
    records = history.whole()
    about = records.submission
    if about.workflow != workflow.name:
        raise InvalidHistory(
            f"this is the history of a run of {about.workflow!r}, and the workflow given is "
            f"{workflow.name!r}",
            run_id=about.run_id,
        )
    if workflow.kind == "machine":
        raise InvalidHistory(
            f"{workflow.name!r} is a machine: only its latest turn is kept, so there is nothing "
            "that today's code could be compared with; test its turns with open_test_runtime()",
            run_id=about.run_id,
        )
    return records


def _read_input(run: "DryRun") -> Any:
    try:
        return run.partition.codec.decode(input_of(run), run.workflow.input_type)
    except (PayloadError, PayloadTypeError) as error:
        raise run.contradiction(
            f"the input of the run cannot be read by today's code: {error}; if its runtime has a "
            "transform, give it to replay(transform=...)"
        ) from error


def _judge(run: Run, result: Any, failure: Failure | None) -> None:
    """Say how far the pass came, or raise what it contradicts."""
    assert isinstance(run, DryRun)
    try:
        run.came_to = _state(run, result, failure)
    except NonDeterminism as error:
        if run.new and run.journal.expected is None and run.journal.unread() is None:
            error.add_note(
                f"The journal does not have {_named(run.new)}. If that was put in on purpose, say "
                f"what it returns: replay(..., given={{{run.new[0]!r}: ...}})"
            )
        raise


def _named(idents: list[str]) -> str:
    return " and ".join(map(repr, sorted(idents)))


def _state(run: DryRun, result: Any, failure: Failure | None) -> State:
    decision, unread = run.decision, run.journal.unread()
    if unread is None and decision is None and run.journal.expected is not None:
        unread = run.journal.expected.next()
    standing = run.records.standing
    was = None if standing is None else _end_of(run, standing)
    if isinstance(decision, NonDeterminism):
        raise decision
    if decision is None and run.unwinding is Unwind.LEAVE:
        asks = _named(run.asks)
        if unread is not None:
            raise run.contradiction(contradicted(run.journal, unread, asks))
        if was is not None:
            raise run.contradiction(
                f"the run ended as {was.said}, and today's code asks for {asks} instead"
            )
        return State.RUNNING
    if unread is not None:
        error = run.contradiction(contradicted(run.journal, unread, None))
        if failure is not None and failure.traceback:
            error.add_note(failure.traceback)
        raise error
    if isinstance(decision, Continuation):
        if was is not None:
            raise run.contradiction(
                f"the run ended as {was.said}, and today's code goes on with continue_as instead"
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
            failure = workflow_error(unfit)
        else:
            return _compare(run, was, _succeeded(canonical, result))
    return _compare(run, was, _failed(failure), failure)


@attrs.frozen
class End:
    """How a run ended, or would end: what must be the same, and how to put it."""

    state: State
    same: Any
    said: str


def _compare(run: DryRun, was: End | None, end: End, failure: Failure | None = None) -> State:
    """The state that today's code came to, which must be that of a run that has ended."""
    if was is None and (failure is None or failure.kind is not FailureKind.WORKFLOW_ERROR):
        return end.state
    if was is not None and (was.state, was.same) == (end.state, end.same):
        return end.state
    before = "had not come to an end of its own" if was is None else f"ended as {was.said}"
    error = run.contradiction(f"the run {before}, and today's code ends as {end.said}")
    if failure is not None and failure.traceback:
        error.add_note(failure.traceback)
    raise error


def _end_of(run: DryRun, standing: Standing) -> End | None:
    """The end that the run came to, or None if it has not ended, or was ended from outside,
    wherever its code was by then."""
    failure = standing.failure
    if not standing.state.terminal:
        return None
    if standing.state is State.CANCELLED:
        return None if standing.reason is None else _cancelled(standing.reason)
    if failure is not None:
        return None if failure.kind is FailureKind.RUN_TIMEOUT else _failed(failure)
    assert standing.result is not None
    stored = run.partition.codec.decode(standing.result)
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
