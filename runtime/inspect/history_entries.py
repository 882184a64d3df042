"""The story of a run, told from its records: what happened, in the order in which it did.

Every generation has its start and its end. Those of the present one stand in the status of the
run, those of earlier ones in the entry that redrove it; a Keyrun of before did not write them
down there, and then they are not told.
"""

from collections.abc import Iterable
from typing import Any

import attrs

from keyrun.runtime.records.journal_entry import CHILD, GATE, CallKind, Entry
from keyrun.runtime.records.submission import Standing, Submission, read_failure
from keyrun.runtime.run.memories import NODE_ENDED
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

    def add(self, entries: Iterable[list[Any] | StoreError]) -> None:
        """Tell the next entries of the journal."""
        told = self._told
        for fields in entries:
            if isinstance(fields, StoreError):
                told.append(_damaged(told, fields))
            elif fields[0] == Entry.TURN:
                self._turn = _entry(fields)
            else:
                if fields[0] == Entry.REDRIVEN:
                    _add_ends(told, self._start, _former(fields))
                    self._start = len(told) + 1
                told.append(_entry(fields))

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


def _former(fields: list[Any]) -> Standing:
    """How the generation went that was over when the run was redriven, as far as that is known."""
    if len(fields) < 9:
        return Standing()
    started_at, ended_at, state, reason, failure = fields[4:9]
    return Standing(
        started_at=started_at,
        ended_at=ended_at,
        state=State(state),
        reason=reason,
        failure=read_failure(failure),
    )


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


def _entry(fields: list[Any]) -> Happening:
    kind, ident, at, *rest = fields
    match Entry(kind):
        case Entry.DONE:
            call, _, attempt, began, payload = rest
            if call == CallKind.SCOPE:
                ending, length, *_ = payload
                event = "scope_expired" if ending else "scope_finished"
                said = f"its limit was {length:g} s"
                return Happening(at=at, event=event, step=ident, began_at=began, detail=said)
            if call in _RECEIVED:
                return _received(at, ident, CallKind(call), payload)
            event = {
                CallKind.STEP: "step_completed",
                CallKind.NOW: "time_taken",
                CallKind.GATHER: "branch_failed",
                CallKind.TIMER: "timer_fired",
                CallKind.GRAPH: "graph_failed",
            }[CallKind(call)]
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
            attempt, alone, *begun = rest
            detail = "while it was the only suspect" if alone else None
            return Happening(
                at=at,
                event="interrupted",
                step=ident,
                attempt=attempt,
                began_at=begun[0] if begun else None,
                detail=detail,
            )
        case Entry.TIMER:
            event = "timer_set" if len(rest) == 2 else "scope_entered"
            return Happening(at=at, event=event, step=ident, delay=rest[1])
        case Entry.WAIT:
            call, channel, timer, *_ = rest
            event = _WANTED[CallKind(call)]
            said, delay = channel.removeprefix(GATE).removeprefix(CHILD), timer and timer[1]
            return Happening(at=at, event=event, step=ident, delay=delay, detail=said)
        case Entry.CONTINUED:
            return Happening(at=at, event="continued", detail=f"with journal {rest[0] + 1}")
        case Entry.TURN:
            return Happening(at=at, event="turned", attempt=None, detail=f"next turn {rest[0]}")
        case Entry.REDRIVEN:
            return Happening(at=at, event="redriven", detail=f"generation {rest[0]}")
        case Entry.UNDO:
            state, _, failure, _, idents = rest
            named = ", ".join(map(repr, reversed(idents)))
            said = f"before it is {state}, these are undone: {named}"
            failed = read_failure(failure)
            return Happening(at=at, event="compensating", failure=failed, detail=said)
        case Entry.NOTE:
            what, *details = rest
            if what == NODE_ENDED:
                on, port, _, *failure = details
                failed = read_failure(failure[0]) if failure else None
                said = str(on) if port is None else f"by the port {port!r}"
                return Happening(at=at, event=what, step=ident, failure=failed, detail=said)
            if what == "step_overrun":
                attempt, limit = details
                detail = f"its time of {limit:g} s is up and its thread still runs"
                return Happening(at=at, event=what, step=ident, attempt=attempt, detail=detail)
            return Happening(
                at=at, event=what, step=ident or None, detail="; ".join(map(str, details)) or None
            )


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
