"""History: everything that happened to a run, in order, made from its records.

Each generation has its start and its end. Those of the present generation are in the status of the
run, those of earlier generations in the journal entry of the redrive. An older Keyrun did not write
them there, so the history of such a run does not have them.

A history has the records that it was made from. It can be saved to a file, and replayed against
changed code: see `keyrun.testing.replay`.
"""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import attrs

from keyrun.runtime.errors import InvalidHistory
from keyrun.runtime.records.exported import Records, parse, render
from keyrun.runtime.records.journal_entry import (
    CHILD,
    GATE,
    STEP_OVERRUN,
    UNDOABLE,
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
from keyrun.runtime.records.operation import AuditEntry
from keyrun.runtime.records.submission import StatusRecord, Submission, read_failure
from keyrun.runtime.values import Failure, State
from keyrun.storage import StoreError

_ENDS = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "cancelled"}


@attrs.frozen(kw_only=True)
class Happening:
    """Describe one event in the history of a run. Fields that do not apply are None."""

    at: float
    """The time of the event, in seconds since the epoch."""
    event: str
    """The name of the event, for example `step_completed`."""
    step: str | None = None
    """The step or call that the event is about."""
    attempt: int | None = None
    """The number of the attempt, from 1."""
    began_at: float | None = None
    """When the attempt or the wait began."""
    delay: float | None = None
    """Seconds until the next attempt, or the length of a wait."""
    failure: Failure | None = None
    """The failure of the attempt or of the run."""
    detail: str | None = None
    """More about the event, as text."""
    who: str | None = None
    """For `operation`, the name of the caller."""
    stored: bytes | None = attrs.field(default=None, repr=False)
    """What the event carries, as it is stored: the input or the result of the run, the result of a
    step or of a child, or the payload of a signal."""


@attrs.frozen(kw_only=True)
class HistoryPage:
    """Hold one page of the history of a run."""

    events: tuple[Happening, ...]
    """What happened to the run, in order."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""


@attrs.frozen(repr=False)
class History(Sequence[Happening]):
    """List everything that happened to a run, in order. It is a sequence of `Happening`, empty if
    the run is unknown. A record that cannot be read has the event `damaged`."""

    records: Records | None = None
    """The records of the run with their payloads, as they are stored. None if the run is unknown,
    or if a record is damaged."""
    _story: tuple[Happening, ...] = attrs.field(kw_only=True)

    @_story.default
    def _build(self) -> tuple[Happening, ...]:
        records = self.records
        if records is None:
            return ()
        builder = HistoryBuilder(records.submission)
        builder.add(entry for _, entry in records.entries)
        return builder.end(records.status)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the history to a file, which `History.load` reads. The file is text. It contains
        the input of the run and the results of its steps, encrypted if the runtime has a
        `transform` that encrypts."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "History":
        """Return the history that `save` wrote to a file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidHistory(f"{path}: {error}") from error

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        return render(self.whole())

    def whole(self) -> Records:
        """Return the records. Raise `InvalidHistory` if one of them is missing."""
        if self.records is not None:
            return self.records
        for happening in self:
            if happening.event == "damaged":
                raise InvalidHistory(f"this history has a gap: {happening.detail}")
        raise InvalidHistory("this history is empty: no run has that id, or it was forgotten")

    @classmethod
    def from_json(cls, text: str) -> "History":
        """Return the history of a text of `to_json`."""
        try:
            return cls(parse(text))
        except InvalidHistory:
            raise
        except Exception as error:  # the text can provoke any error
            raise InvalidHistory(
                f"this is not a history that Keyrun has saved, or it was changed since: {error}; "
                "save it again: (await runtime.history(run_id)).save(path)"
            ) from error

    @overload
    def __getitem__(self, index: int, /) -> Happening: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Happening, ...]: ...
    def __getitem__(self, index: Any, /) -> Any:
        return self._story[index]

    def __len__(self) -> int:
        return len(self._story)

    def __repr__(self) -> str:
        about = "a damaged run" if self._story else "no run"
        if self.records is not None:
            about = self.records.submission.run_id
        return f"<history of {about}, {len(self)} happenings>"


class HistoryBuilder:
    """Builds the history of a run, entry by entry. In the place of a record that cannot be read, it
    has a `damaged` event with the reason."""

    def __init__(
        self,
        submission: Submission | StoreError | None,
        generation: int = 1,
        *,
        began: bool = False,
    ) -> None:
        """Begin a history, or without a `submission` a later page of one. `generation` is the
        generation in which the page begins, and `began` says whether its start was on an earlier
        page."""
        self._story: list[Happening] = []
        self.generation = generation
        self.began = began
        if isinstance(submission, StoreError):
            self._story.append(_damaged(self._story, submission))
        elif submission is not None:
            at, stored = submission.submitted_at, submission.input
            self._story.append(Happening(at=at, event="submitted", stored=stored))
        self._start = len(self._story)
        self._turn: Happening | None = None

    def add(self, entries: Iterable[JournalEntry | StoreError]) -> None:
        """Add the next entries of the journal."""
        story = self._story
        for entry in entries:
            if isinstance(entry, StoreError):
                story.append(_damaged(story, entry))
            elif isinstance(entry, NextTurn):
                self._turn = _happening(entry)
            else:
                if isinstance(entry, Redriven):
                    self._add_ends(entry.former or StatusRecord())
                    self._start, self.began = len(story) + 1, False
                    self.generation = entry.generation
                story.append(_happening(entry))

    def end(self, status: StatusRecord | StoreError | None) -> tuple[Happening, ...]:
        """Return the history of a run with this status, or the last page of it."""
        story = self._story
        if self._turn is not None:
            # A machine has one entry for all its turns, which comes before all others.
            story.insert(_place(story, self._start, self._turn.at), self._turn)
        if isinstance(status, StoreError):
            story.append(_damaged(story, status))
        else:
            self._add_ends(status or StatusRecord())
        return tuple(story)

    def page(self, status: StatusRecord | StoreError | None) -> tuple[Happening, ...]:
        """Return one page of the history, which is not the last page. `status` is the present
        status of the run."""
        started = None
        if isinstance(status, StatusRecord) and status.generation == self.generation:
            started = status.started_at
        self._add_start(started)
        return tuple(self._story)

    def _add_ends(self, status: StatusRecord) -> None:
        """Add the start and the end of the generation."""
        self._add_start(status.started_at)
        if status.ended_at is not None:
            self._story.append(
                Happening(
                    at=status.ended_at,
                    event=_ENDS[status.state],
                    failure=status.failure,
                    detail=status.reason,
                    stored=status.result,
                )
            )

    def _add_start(self, started: float | None) -> None:
        """Add the start of the generation, if it is known and was not on an earlier page."""
        story, start = self._story, self._start
        began = [one.began_at for one in story[start:] if one.began_at is not None]
        if started is not None:
            began.append(started)
        if began and not self.began:
            # The status is not stored when a run starts, so the start of its first step is used.
            at = min(began)
            story.insert(_place(story, start, at), Happening(at=at, event="started"))
            self.began = True


def with_operations(
    story: tuple[Happening, ...], operations: Sequence[AuditEntry]
) -> tuple[Happening, ...]:
    """Return a history with the writes from outside in it, each before what it has led to."""
    events = list(story)
    for entry in operations:
        events.insert(_place(events, 0, entry.at), _operation(entry))
    return tuple(events)


def _operation(entry: AuditEntry) -> Happening:
    """Return the event that an operation was performed."""
    said = f"{entry.operation} by {entry.who}"
    if entry.summary:
        said += f" ({entry.summary})"
    said += f": {entry.result}" if entry.error is None else f": {entry.error}: {entry.result}"
    return Happening(at=entry.at, event="operation", detail=said, who=entry.who)


def _place(story: list[Happening], start: int, at: float) -> int:
    """Return the index of an event at this time: before all events since."""
    for place in range(start, len(story)):
        if story[place].at >= at:
            return place
    return len(story)


def _damaged(story: list[Happening], error: StoreError) -> Happening:
    at = story[-1].at if story else 0.0
    return Happening(at=at, event="damaged", detail=str(error))


def _happening(entry: JournalEntry) -> Happening:
    """Return the event of a journal entry."""
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
            if call is CallKind.GRAPH:
                failed = ", ".join(each.removesuffix("/") for each in payload)
                return Happening(
                    at=at, event=event, detail=f"no edge takes the failure of {failed}"
                )
            return Happening(
                at=at,
                event=event,
                step=ident,
                attempt=entry.attempt,
                began_at=entry.begun,
                stored=payload if call is CallKind.STEP else None,
            )
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
            said = f"the run will be {entry.state} when these steps are undone: {named}"
            return Happening(at=at, event="compensating", failure=entry.failure, detail=said)
        case NodeEnded(ident=ident, port=port, failure=failure):
            event = "node_completed" if entry.on == "complete" else "node_failed"
            way = None if port is None else f"by the port {port!r}"
            return Happening(at=at, event=event, step=ident, failure=failure, detail=way)
        case StepOverrun(ident=ident, attempt=attempt):
            said = f"it exceeded its timeout of {entry.limit:g} s, and its thread still runs"
            return Happening(at=at, event=STEP_OVERRUN, step=ident, attempt=attempt, detail=said)
        case Note():
            detail = "; ".join(map(str, entry.details)) or None
            event = _NOTED.get(entry.what, entry.what)
            return Happening(at=at, event=event, step=entry.ident or None, detail=detail)


_COMPLETED = {
    CallKind.STEP: "step_completed",
    CallKind.NOW: "time_taken",
    CallKind.GATHER: "branch_failed",
    CallKind.TIMER: "timer_fired",
    CallKind.GRAPH: "graph_failed",
}
_NOTED = {UNDOABLE: "compensation_registered"}
_RECEIVED = (CallKind.SIGNAL, CallKind.APPROVAL, CallKind.CHILD)
_WANTED = {
    CallKind.SIGNAL: "signal_wanted",
    CallKind.APPROVAL: "approval_wanted",
    CallKind.CHILD: "child_started",
}


def _received(at: float, ident: str, call: CallKind, payload: list[Any]) -> Happening:
    """Return the event that a run received a signal, a decision or the end of a child, or that the
    wait for it timed out."""
    channel, taken, *sent = payload
    said = channel.removeprefix(GATE).removeprefix(CHILD)
    if call is CallKind.CHILD:
        state, result, failure, reason = taken
        said += f": {reason}" if reason else ""
        return Happening(
            at=at,
            event=f"child_{state}",
            step=ident,
            failure=read_failure(failure),
            detail=said,
            stored=result,
        )
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
    stored = taken if sent and call is CallKind.SIGNAL else None
    return Happening(at=at, event=event, step=ident, detail=said, stored=stored)
