"""Settlement: end a run in one commit, and report its end when that commit is durable."""

from collections.abc import Callable
from logging import ERROR
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.records.submission import ASIDE, StatusRecord
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.storage.record import seal, seal_empty

if TYPE_CHECKING:
    from keyrun.storage.group import Group


def settle(
    run: Run,
    state: State,
    *,
    result: bytes | None = None,
    reason: str | None = None,
    failure: Failure | None = None,
    dead: bool = False,
) -> None:
    """Stage the end of a run: its terminal status, the removal of its place, and its outcome for
    the hook. If an internal error prevents that, the status in memory is as before."""
    partition, status = run.partition, run.status
    services = partition.services
    before = _ending(status)
    group = run.staged = partition.commits.open_group()
    group.when_dropped(_take_back, status, before)
    notify_parent: Callable[[], object] | None = None
    staged = False
    try:
        _conclude(run, state, result, reason, failure)
        fields = status.fields()
        if (
            failure is not None
            or run.inbox is not None
            or status.place is None
            or status.evicted_wait is not None
            or status.patches is not None
            or partition.feed is not None
            or services.outbox.collecting
            or services.children.used
            or services.instances is not None
            or partition.operator
        ):
            with partition.together():
                notify_parent = _stage_more(run, group, fields, failure, dead=dead)
                _stage_end(run, group, fields)
                staged = True
        else:
            _stage_end(run, group, fields)
    except BaseException:
        if not staged:
            _take_back(status, before)
        raise
    if notify_parent is not None:
        notify_parent()
    group.hasten()
    if run.pending:
        run.begin()


_ENDING = (
    "state",
    "result",
    "reason",
    "ended_at",
    "waiting_on",
    "quarantine",
    "failure",
    "step",
    "journal_next",
    "summary",
)
"""The fields of a status that an end changes."""
_ending = attrgetter(*_ENDING)


def _take_back(status: StatusRecord, before: tuple[Any, ...]) -> None:
    """Give the fields that an end changes their old values, because the end was not staged."""
    for name, value in zip(_ENDING, before, strict=True):
        setattr(status, name, value)


def _conclude(
    run: Run, state: State, result: bytes | None, reason: str | None, failure: Failure | None
) -> None:
    """Change the status to that of a run that has ended."""
    status = run.status
    status.state = state
    status.result = result
    status.reason = reason
    status.ended_at = run.partition.wall()
    status.waiting_on = status.quarantine = None
    if failure is not None:
        status.failure = failure
        if reason is None and state is State.FAILED:
            status.reason = failure.reason
        status.step = failure.step
    journal, workflow = run.journal, run.workflow
    status.journal_next, status.summary = journal.next, None
    if (
        journal.last_failure is not None
        or status.generation > 1
        or workflow is None
        or workflow.kind == "graph"
    ):
        # Other runs have nothing to summarize.
        status.summary = run.partition.services.summarize(run)
        if status.summary is None:
            status.journal_next = None


def _stage_end(run: Run, group: "Group", fields: tuple[Any, ...]) -> None:
    """Stage the records that every end of a run has. Nothing is called between the first and the
    last record, so that they are staged as a whole."""
    partition, status, record = run.partition, run.status, run.record
    submission = run.submission
    assert status.ended_at is not None
    ended = partition.ledger.timed(status.ended_at, run.number)
    stored, mark = seal("status", record, fields), seal_empty("ended", ended)
    statuses, ends = group.table("status"), group.table("ended")
    places, place = None, b""
    if status.place is not None:
        places, place = group.table("queue"), run.queue.place(status.place)
    counted = submission.workflow, submission.version, *run.counted
    leaving, report = partition.counts.leaving, partition.services.run_ended
    statuses[record] = stored
    ends[ended] = mark
    if places is not None:
        places[place] = None
    leaving.append(counted)
    group.callbacks += (report, (run,))


def _stage_more(
    run: Run, group: "Group", fields: tuple[Any, ...], failure: Failure | None, *, dead: bool
) -> Callable[[], object] | None:
    """Stage the records that only some ends have. Return a function that notifies the parent of the
    run, if the parent is in memory."""
    partition, status = run.partition, run.status
    services, ledger = partition.services, partition.ledger
    if dead:
        group.put("dead", run.record, sealed("dead", run.record, status.ended_at))
        partition.counts.died(run.submission)
    if status.place is None and run.submission.delay:
        services.delays.remove(group, run.submission)
    wait = status.evicted_wait
    if wait is not None and wait.due is not None:
        group.delete("timers", ledger.timed(wait.due, run.number))
    if run.inbox is not None:
        for signal in run.inbox.signals:
            group.delete("signals", ledger.sequenced(run.number, signal.sequence))
            if signal.signal_id is not None:
                # The signal was not taken, so a repeat of it raises `RunEnded`.
                group.delete("sent", ledger.step(run.number, signal.signal_id))
    notify_parent: Callable[[], object] | None = None
    if services.children.used:
        if run.submission.parent is not None and status.generation == 1:
            # The parent waits only for the end of the first generation.
            notify_parent = services.children.ended(run.submission, status, group)
        services.children.cancel_children(run)
    if services.outbox.collecting:
        services.outbox.put(group, run.submission, fields)
    if failure is not None:
        group.when_durable(_log_failure, run, status.state, failure, dead)
    if partition.feed is not None:
        emitter.run_ended(partition.feed, run)
    if services.instances is not None:
        services.instances.left(group, run)
    elif partition.operator:
        group.delete("instances", run.record)
    if status.patches and run.counted[1] != ASIDE:
        partition.counts.patched(run.submission, status.patches, -1)
    return notify_parent


_NOT_LOGGED = {
    FailureKind.VERDICT,
    FailureKind.WORKFLOW_ERROR,
    FailureKind.ITERATION_LIMIT,
    FailureKind.CHILD_FAILED,
}
"""Failures that no other line has when a run ends with them. Others are logged when they happen."""


def _log_failure(run: Run, state: State, failure: Failure, dead: bool) -> None:
    """Log the end of a run that failed. A dead letter needs an operator, so its line has everything
    that is known, even if other lines have it, too."""
    event = f"run_{state}"
    if dead:
        message = f"the run failed and is a dead letter: {failure.reason}"
        traceback = _traceback(failure)
        if traceback is not None:
            message = f"{message}\n{traceback.rstrip()}"
        log(run, event, message, failure, level=ERROR)
        return
    at = "" if failure.step is None else f" at step {failure.step!r}"
    why = failure.reason if failure.kind in _NOT_LOGGED else f"{failure.kind}{at}"
    log(run, event, f"the run failed: {why}", failure)


def _traceback(failure: Failure | None) -> str | None:
    """Return the traceback of a failure, or of its cause."""
    while failure is not None:
        if failure.traceback:
            return failure.traceback
        failure = failure.cause
    return None
