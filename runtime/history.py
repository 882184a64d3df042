"""History: the persisted story of a run, every attempt with its error and delay.

It carries the records that it was told from, so that it can be saved to a file and later be used
to check that changed code still fits the run: see `keyrun.testing.replay`.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import attrs

from keyrun.runtime.errors import InvalidHistory
from keyrun.runtime.exported import Records, parse, render
from keyrun.runtime.journal import Call, Entry
from keyrun.runtime.records import Standing, Submission, read_failure
from keyrun.runtime.values import Failure, State
from keyrun.storage import StoreError


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


@attrs.frozen(repr=False)
class History(Sequence[Happening]):
    """What happened to a run, in order. Empty if there is no such run. What cannot be read any more
    is told as `damaged`."""

    records: Records | None = None
    """What it was told from, payloads included, as they are stored; None if there is no such run,
    or a part of it is damaged."""
    _story: tuple[Happening, ...] = attrs.field(kw_only=True)

    @_story.default
    def _tell(self) -> tuple[Happening, ...]:
        told = self.records
        if told is None:
            return ()
        return tell(told.submission, told.standing, [fields for _, fields in told.entries])

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, for `load`. The file is text and holds all that the run was given
        and its steps returned, encrypted if the runtime has a `transform` for that."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "History":
        """Read what `save` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidHistory(f"{path}: {error}") from error

    def to_json(self) -> str:
        """What `save` writes."""
        return render(self.whole())

    def whole(self) -> Records:
        """The records, if all of them are there."""
        if self.records is not None:
            return self.records
        for happening in self:
            if happening.event == "damaged":
                raise InvalidHistory(f"this history has a gap: {happening.detail}")
        raise InvalidHistory("this history is empty: no run had that id, or it was forgotten")

    @classmethod
    def from_json(cls, text: str) -> "History":
        """The inverse of `to_json`."""
        try:
            return cls(parse(text))
        except InvalidHistory:
            raise
        except Exception as error:  # whatever the text provokes, the answer is the same
            raise InvalidHistory(
                f"this is no history that Keyrun has saved, or it was changed since: {error}; "
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
        about = "a damaged run" if self._story else "nobody"
        if self.records is not None:
            about = self.records.submission.run_id
        return f"<history of {about}, {len(self)} happenings>"


def tell(
    submission: Submission | StoreError,
    standing: Standing | StoreError | None,
    entries: Sequence[list[Any] | StoreError],
) -> tuple[Happening, ...]:
    """The story, in the order in which it was written down. What cannot be read any more, and why,
    is told where it would stand."""
    story: list[Happening] = []
    if isinstance(submission, StoreError):
        story.append(_damaged(story, submission))
    else:
        story.append(Happening(at=submission.submitted_at, event="submitted"))
    start = len(story)
    for fields in entries:
        if isinstance(fields, StoreError):
            story.append(_damaged(story, fields))
        else:
            story.append(_entry(fields))
            if story[-1].event == "redriven":
                start = len(story)
    if isinstance(standing, Standing) and standing.started_at is not None:
        # Only the present generation's is known: it comes after what redrove the run.
        story.insert(start, Happening(at=standing.started_at, event="started"))
    if isinstance(standing, StoreError):
        story.append(_damaged(story, standing))
    elif standing is not None and standing.ended_at is not None:
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
    return tuple(story)


def _damaged(story: list[Happening], error: StoreError) -> Happening:
    at = story[-1].at if story else 0.0
    return Happening(at=at, event="damaged", detail=str(error))


def _entry(fields: list[Any]) -> Happening:
    kind, ident, at, *rest = fields
    match Entry(kind):
        case Entry.DONE:
            call, _, attempt, began, payload = rest
            if call == Call.SCOPE:
                ending, length = payload
                event = "scope_expired" if ending else "scope_finished"
                said = f"its limit was {length:g} s"
                return Happening(at=at, event=event, step=ident, began_at=began, detail=said)
            event = {
                Call.STEP: "step_completed",
                Call.NOW: "time_taken",
                Call.GATHER: "branch_failed",
                Call.TIMER: "timer_fired",
                Call.GRAPH: "graph_failed",
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
            event = "timer_set" if len(rest) == 2 else "scope_entered"
            return Happening(at=at, event=event, step=ident, delay=rest[1])
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
