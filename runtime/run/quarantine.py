"""Quarantine of a run: it waits for an operator, holds its key, and is visible.

1. A run whose code does not fit is quarantined in one commit: its status with the cause, and an
   entry in its history.
2. Each open tries such a run again when the run is loaded. A contradiction is tried again only if
   the code of the workflow has changed, since the same code would contradict the journal again.
3. If the run still does not fit for the same cause and has done nothing new, its history gets no
   further entry.

`keyrun.runtime.operations.damaged_runs` quarantines a run with a damaged record, and
`keyrun.runtime.recovery.supervision` a key whose actor crashes.
"""

from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.records.submission import Quarantine, not_registered
from keyrun.runtime.texts import clean, named
from keyrun.runtime.values import QuarantineCause, State

if TYPE_CHECKING:
    from keyrun.runtime.definitions.workflow import Workflow
    from keyrun.runtime.run.run import Run


def quarantine(run: "Run", cause: QuarantineCause, reason: str) -> None:
    """Stage that a run waits for an operator. It holds its key, because the code can be fixed."""
    status, workflow = run.status, run.workflow
    reason = clean(reason)
    status.state = State.QUARANTINED
    status.reason = reason
    status.waiting_on = None
    contradicts = cause is QuarantineCause.CONTRADICTION and workflow is not None
    status.quarantine = Quarantine(cause, workflow.fingerprint() if contradicts else None)
    with run.partition.together():
        if run.tried_again != (cause, run.journal.next):
            run.note("", "quarantined", reason)
        run.store_status()
    _hold(run)
    feed = run.partition.feed
    if feed is not None:
        kind = EventKind.RUN_QUARANTINED
        emitter.run_changed(feed, run.staged, kind, run.submission, status, reason)
    # One warning for all runs of a workflow that is not registered is logged at the open.
    level = INFO if cause is QuarantineCause.UNREGISTERED else WARNING
    log(run, "run_quarantined", reason, level=level)


def quarantine_unregistered(run: "Run") -> None:
    """Quarantine a run whose workflow is not registered, unless it is already quarantined for that
    reason."""
    known = run.status.quarantine
    if known is not None and known.cause is QuarantineCause.UNREGISTERED:
        _hold(run)
        return
    quarantine(run, QuarantineCause.UNREGISTERED, not_registered(run.submission))


def quarantine_input(run: "Run", error: BaseException) -> None:
    """Quarantine a run because the input type of its workflow raised `error` for its input."""
    quarantine(
        run,
        QuarantineCause.INPUT,
        f"the workflow {run.submission.workflow!r} cannot read the input of the run: "
        f"{named(error, run.partition.redaction)}",
    )


def try_again(run: "Run") -> None:
    """Let a quarantined run that was just loaded resume, if its code may fit now."""
    status = run.status
    known = status.quarantine
    assert known is not None
    if is_kept(known, run.workflow):
        _hold(run)
        return
    run.tried_again = known.cause, run.journal.next
    status.lift_quarantine()
    run.store_status()


def is_kept(known: Quarantine, workflow: "Workflow[Any, Any] | None") -> bool:
    """Return whether a quarantined run is not tried again in this open without an operator."""
    match known.cause:
        case QuarantineCause.UNREGISTERED:
            return workflow is None
        case QuarantineCause.INPUT | QuarantineCause.OUTCOME:
            return False
        case QuarantineCause.CONTRADICTION:
            # If one of them has no fingerprint, it is unknown whether the code has changed.
            same = None if workflow is None else workflow.fingerprint()
            return same is not None and same == known.fingerprint
        case _:
            return True


def _hold(run: "Run") -> None:
    """Keep the key, count as started, and notify the callers that wait for the result."""
    run.begin()
    run.submission.at_hand = False
    group = run.staged
    if group is None or group.durable:
        _notify(run)
    else:
        group.when_durable(_notify, run)


def _notify(run: "Run") -> None:
    """Report a quarantine that is durable."""
    if run.status.state is State.QUARANTINED:
        # A copy: a redrive changes the status of the run before the callers have read it.
        run.partition.services.run_quarantined(run.number, attrs.evolve(run.status))
