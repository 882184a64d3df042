"""The story of a run, told from its records: what happened, in the order in which it did.

Every generation has its start and its end. Those of the present one stand in the status of the
run, those of earlier ones in the entry that redrove it; a Keyrun of before did not write them
down there, and then they are not told.
"""

from collections.abc import Iterable
from typing import Any

import attrs

from keyrun.runtime.records.journal_entry import (
    CHILD,
    GATE,
    NODE_ENDED,
    STEP_OVERRUN,
    AttemptFailed,
    CallDone,
    CallKind,
    Continued,
    Interrupted,
    JournalEntry,
    NextTurn,
    NodeEnded,
    Note,
    Redriven,
    StepGaveUp,
    StepOverrun,
    TimerSet,
    Undo,
    WaitBegan,
)
from keyrun.runtime.records.submission import Standing, Submission, read_failure
from keyrun.runtime.values import Failure, State
from keyrun.storage import StoreError

_ENDS = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "cancelled"}


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


class HistoryBuilder:
    """What happened to a run, told entry by entry. What cannot be read any more, and why, is told
    where it would stand."""

    def __init__(self, submission: Submission | StoreError) -> None:
        self._told: list[Happening] = []
        if isinstance(submission, StoreError):
            self._told.append(_damaged(self._told, submission))
        else:
            self._told.append(Happening(at=submission.submitted_at, event="submitted"))
        self._start = len(self._told)
        self._turn: Happening | None = None

    def add(self, entries: Iterable[JournalEntry | StoreError]) -> None:
        """Add the next entries of the journal."""
        told = self._told
        for entry in entries:
            if isinstance(entry, StoreError):
                told.append(_damaged(told, entry))
            elif isinstance(entry, NextTurn):
                self._turn = _happening(entry)
            else:
                if isinstance(entry, Redriven):
                    _add_ends(told, self._start, entry.former or Standing())
                    self._start = len(told) + 1
                told.append(_happening(entry))

    def end(self, standing: Standing | StoreError | None) -> tuple[Happening, ...]:
        """All of it; `standing` is how the run stands."""
        told = self._told
        if self._turn is not None:
            # A machine has one entry for all its turns, which stands before all others.
            told.insert(_place(told, self._start, self._turn.at), self._turn)
        if isinstance(standing, StoreError):
            told.append(_damaged(told, standing))
        else:
            _add_ends(told, self._start, standing or Standing())
        return tuple(told)


def _add_ends(story: list[Happening], start: int, standing: Standing) -> None:
    """Tell the start of the generation whose happenings begin at `start`, and its end."""
    began = [one.began_at for one in story[start:] if one.began_at is not None]
    if standing.started_at is not None:
        began.append(standing.started_at)
    if began:
        # The status is not stored when a run starts: what its first step says is as good.
        at = min(began)
        story.insert(_place(story, start, at), Happening(at=at, event="started"))
    if standing.ended_at is not None:
        story.append(
            Happening(
                at=standing.ended_at,
                event=_ENDS[standing.state],
                failure=standing.failure,
                detail=standing.reason,
            )
        )


def _place(story: list[Happening], start: int, at: float) -> int:
    """Where something belongs that happened then: before all that was written down since."""
    for place in range(start, len(story)):
        if story[place].at >= at:
            return place
    return len(story)


def _damaged(story: list[Happening], error: StoreError) -> Happening:
    at = story[-1].at if story else 0.0
    return Happening(at=at, event="damaged", detail=str(error))


def _happening(entry: JournalEntry) -> Happening:
    """Return what an entry says, for the history."""
    at = entry.at
    match entry:
        case CallDone(ident=ident, call=call, payload=payload):
            if call is CallKind.SCOPE:
                ending, length, *_ = payload
                event = "scope_expired" if ending else "scope_finished"
                said = f"its limit was {length:g} s"
                return Happening(at=at, event=event, step=ident, began_at=entry.begun, detail=said)
            if call in _RECEIVED:
                return _received(at, ident, call, payload)
            event = _COMPLETED[call]
            attempt, begun = entry.attempt, entry.begun
            return Happening(at=at, event=event, step=ident, attempt=attempt, began_at=begun)
        case AttemptFailed():
            return Happening(
                at=at,
                event="attempt_failed",
                step=entry.ident,
                attempt=entry.attempt,
                began_at=entry.begun,
                delay=entry.retry.length,
                failure=entry.failure,
            )
        case StepGaveUp():
            return Happening(
                at=at,
                event="step_failed",
                step=entry.ident,
                attempt=entry.attempt,
                began_at=entry.begun,
                failure=entry.failure,
            )
        case Interrupted():
            return Happening(
                at=at,
                event="interrupted",
                step=entry.ident,
                attempt=entry.attempt,
                began_at=entry.begun,
                detail="while it was the only suspect" if entry.alone else None,
            )
        case TimerSet(ident=ident, timer=timer):
            event = "timer_set" if entry.call is CallKind.TIMER else "scope_entered"
            return Happening(at=at, event=event, step=ident, delay=timer.length)
        case WaitBegan(ident=ident, channel=channel, limit=limit):
            event, delay = _WANTED[entry.call], limit and limit.length
            said = channel.removeprefix(GATE).removeprefix(CHILD)
            return Happening(at=at, event=event, step=ident, delay=delay, detail=said)
        case Continued():
            return Happening(at=at, event="continued", detail=f"with journal {entry.number + 1}")
        case NextTurn():
            return Happening(at=at, event="turned", detail=f"next turn {entry.number}")
        case Redriven():
            return Happening(at=at, event="redriven", detail=f"generation {entry.generation}")
        case Undo():
            named = ", ".join(map(repr, reversed(entry.steps)))
            said = f"before it is {entry.state}, these are undone: {named}"
            return Happening(at=at, event="compensating", failure=entry.failure, detail=said)
        case NodeEnded(ident=ident, port=port, failure=failure):
            said = entry.on if port is None else f"by the port {port!r}"
            return Happening(at=at, event=NODE_ENDED, step=ident, failure=failure, detail=said)
        case StepOverrun(ident=ident, attempt=attempt):
            said = f"its time of {entry.limit:g} s is up and its thread still runs"
            return Happening(at=at, event=STEP_OVERRUN, step=ident, attempt=attempt, detail=said)
        case Note():
            detail = "; ".join(map(str, entry.details)) or None
            return Happening(at=at, event=entry.what, step=entry.ident or None, detail=detail)


_COMPLETED = {
    CallKind.STEP: "step_completed",
    CallKind.NOW: "time_taken",
    CallKind.GATHER: "branch_failed",
    CallKind.TIMER: "timer_fired",
    CallKind.GRAPH: "graph_failed",
}
_RECEIVED = (CallKind.SIGNAL, CallKind.APPROVAL, CallKind.CHILD)
_WANTED = {
    CallKind.SIGNAL: "signal_wanted",
    CallKind.APPROVAL: "approval_wanted",
    CallKind.CHILD: "child_started",
}


def _received(at: float, ident: str, call: CallKind, payload: list[Any]) -> Happening:
    """That a run was sent what it waited for, or that nobody did in time."""
    channel, taken, *sent = payload
    said = channel.removeprefix(GATE).removeprefix(CHILD)
    if call is CallKind.CHILD:
        state, _, failure, reason = taken
        said += f": {reason}" if reason else ""
        event = f"child_{state}"
        return Happening(at=at, event=event, step=ident, failure=read_failure(failure), detail=said)
    if call is CallKind.SIGNAL:
        event = "signal_received" if sent else "signal_timed_out"
        if sent and sent[1] is not None:
            said = f"{said} ({sent[1]})"
    elif not sent:
        event = "approval_timed_out"
    else:
        approved, by, comment = taken
        event = "approved" if approved else "rejected"
        said = f"{said}, by {by}" + (f": {comment}" if comment else "")
    if sent and sent[0] != at:
        said += f", sent {at - sent[0]:.3f} s before"
    return Happening(at=at, event=event, step=ident, detail=said)
