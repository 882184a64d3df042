"""History: the persisted story of a run, every attempt with its error and delay."""

from typing import Any

import attrs

from keyrun.runtime.journal import Call, Entry
from keyrun.runtime.ledger import Standing, Submission, read_failure
from keyrun.runtime.values import Failure, State


@attrs.frozen(kw_only=True)
class Happening:
    """One thing that happened. `event` says what; the rest is there where it applies."""

    at: float
    event: str
    step: str | None = None
    attempt: int | None = None
    began_at: float | None = None
    delay: float | None = None
    failure: Failure | None = None
    detail: str | None = None


def tell(
    submission: Submission, standing: Standing | None, entries: list[list[Any]]
) -> list[Happening]:
    """The story, in the order in which it was written down."""
    story = [Happening(at=submission.submitted_at, event="submitted")]
    if standing is not None and standing.started_at is not None:
        story.append(Happening(at=standing.started_at, event="started"))
    for fields in entries:
        happening = _entry(fields)
        if happening is not None:
            story.append(happening)
    if standing is not None and standing.ended_at is not None:
        event = {
            State.SUCCEEDED: "succeeded",
            State.FAILED: "failed",
            State.CANCELLED: "cancelled",
        }[standing.state]
        story.append(
            Happening(
                at=standing.ended_at,
                event=event,
                failure=standing.failure,
                detail=standing.reason,
            )
        )
    return story


def _entry(fields: list[Any]) -> Happening | None:
    kind, ident, at, *rest = fields
    match Entry(kind):
        case Entry.DONE:
            call, _, attempt, began, _ = rest
            event = {
                Call.STEP: "step_completed",
                Call.NOW: "time_taken",
                Call.GATHER: "branch_failed",
                Call.TIMER: "timer_fired",
            }[Call(call)]
            return Happening(at=at, event=event, step=ident, attempt=attempt, began_at=began)
        case Entry.FAILED:
            _, attempt, began, failure, retry = rest
            return Happening(
                at=at,
                event="attempt_failed",
                step=ident,
                attempt=attempt,
                began_at=began,
                delay=retry[1],
                failure=read_failure(failure),
            )
        case Entry.GAVE_UP:
            _, attempt, began, failure = rest
            return Happening(
                at=at,
                event="step_failed",
                step=ident,
                attempt=attempt,
                began_at=began,
                failure=read_failure(failure),
            )
        case Entry.INTERRUPTED:
            attempt, alone = rest
            detail = "while it was the only suspect" if alone else None
            return Happening(at=at, event="interrupted", step=ident, attempt=attempt, detail=detail)
        case Entry.TIMER:
            return Happening(at=at, event="timer_set", step=ident, delay=rest[1])
        case Entry.TURN:
            return Happening(at=at, event="turned", attempt=None, detail=f"next turn {rest[0]}")
        case Entry.REDRIVEN:
            return Happening(at=at, event="redriven", detail=f"generation {rest[0]}")
        case Entry.NOTE:
            what, *details = rest
            if what == "step_overrun":
                attempt, limit = details
                detail = f"its time of {limit:g} s is up and its thread still runs"
                return Happening(at=at, event=what, step=ident, attempt=attempt, detail=detail)
            return Happening(
                at=at, event=what, step=ident or None, detail="; ".join(map(str, details)) or None
            )
