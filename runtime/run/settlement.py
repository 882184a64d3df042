"""Settlement: how a run ends, in one commit, and what becomes true when that commit is durable."""

from logging import ERROR

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.storage.record import seal, seal_empty


def settle(
    run: Run,
    state: State,
    *,
    result: bytes | None = None,
    reason: str | None = None,
    failure: Failure | None = None,
    dead: bool = False,
) -> None:
    """Stage the end of a run: its terminal record, its place freed, the hook's turn."""
    partition, standing, ledger = run.partition, run.standing, run.partition.ledger
    standing.state = state
    standing.result = result
    standing.reason = reason
    standing.ended_at = partition.wall()
    standing.waiting_on = standing.quarantine = None
    if failure is not None:
        standing.failure = failure
        if reason is None and state is State.FAILED:
            standing.reason = failure.reason
        standing.step = failure.step
    journal, workflow = run.journal, run.workflow
    standing.journal_next, standing.summary = journal.next, None
    if (
        journal.last_failure is not None
        or standing.generation > 1
        or workflow is None
        or workflow.kind == "graph"
    ):
        # For other runs there is nothing to summarize.
        standing.summary = partition.services.summarize(run)
        if standing.summary is None:
            standing.journal_next = None
    group = run.staged = partition.commits.open_group()
    tables, record = group.tables, run.record
    fields = standing.fields()
    tables["status"][record] = seal("status", record, fields)
    if standing.place is not None:
        tables["queue"][run.queue.place(standing.place)] = None
    elif run.submission.delay:
        partition.services.delays.remove(group, run.submission)
    wait = standing.evicted_wait
    if wait is not None and wait.due is not None:
        group.delete("timers", ledger.timed(wait.due, run.number))
    if run.inbox is not None:
        for signal in run.inbox.signals:
            group.delete("signals", ledger.sequenced(run.number, signal.sequence))
            if signal.signal_id is not None:
                # A repeat is told that the run has ended: it was not taken.
                group.delete("sent", ledger.step(run.number, signal.signal_id))
    if partition.services.children.used:
        if run.submission.parent is not None and standing.generation == 1:
            # Of what a redrive makes of it nobody is told: they have gone on.
            partition.services.children.ended(run.submission, standing, group)
        partition.services.children.left_alone(run)
    ended = ledger.timed(standing.ended_at, run.number)
    tables["ended"][ended] = seal_empty("ended", ended)
    if dead:
        tables["dead"][record] = sealed("dead", record, standing.ended_at)
    if partition.services.outbox.collecting:
        partition.services.outbox.put(group, run.submission, fields)
    if failure is not None:
        group.when_durable(_log_failure, run, state, failure, dead)
    if partition.feed is not None:
        emitter.run_ended(partition.feed, run)
    if partition.services.instances is not None:
        partition.services.instances.left(group, run)
    partition.unfinished.ended(run.submission, run.counted, standing.patches)
    group.when_durable(partition.services.run_ended, run)
    group.hasten()
    if run.pending:
        run.begin()


_NOT_LOGGED = {
    FailureKind.VERDICT,
    FailureKind.WORKFLOW_ERROR,
    FailureKind.ITERATION_LIMIT,
    FailureKind.CHILD_FAILED,
}
"""Failures that no other line has when a run ends with them. Others are logged when they happen."""


def _log_failure(run: Run, state: State, failure: Failure, dead: bool) -> None:
    """Log the end of a run that failed. A dead letter needs a person, so its line has all that is
    known, whatever other lines say."""
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
    """The traceback of a failure, or of the one that led to it."""
    while failure is not None:
        if failure.traceback:
            return failure.traceback
        failure = failure.cause
    return None
