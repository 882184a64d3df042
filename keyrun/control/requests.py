"""What callers send, and what the operations that Keyrun adds to those of `Runtime` answer."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.control.roles import Role
from keyrun.control.shapes import CODEC, NOTHING, Misplaced, Payload
from keyrun.runtime.events.types import Event
from keyrun.runtime.limits import Limits
from keyrun.runtime.records.submission import Quarantine, StatusRecord, Submission
from keyrun.runtime.values import (
    Failure,
    FailureKind,
    Priority,
    QuarantineCause,
    RunStatus,
    State,
)

if TYPE_CHECKING:
    from keyrun.runtime.groups.records import MemberOutcome
    from keyrun.runtime.handle import RunHandle
    from keyrun.runtime.inspect.history import Happening
    from keyrun.runtime.inspect.pages import RunPage
    from keyrun.runtime.schedules.timetable import Timetable


@attrs.frozen(kw_only=True)
class Session:
    """Describe who calls, and what this caller may do in this process."""

    name: str
    """Who calls, as the audit log names the caller."""
    role: Role
    """What the caller may do."""
    namespace: str
    """The namespace in the store."""
    version: str
    """The version of Keyrun."""
    read_only: str | None = None
    """Why nothing can be changed here, as a sentence. None if the role alone decides."""


@attrs.frozen(kw_only=True)
class NewRun:
    """A run to submit, among others."""

    workflow: str
    """The name of the workflow."""
    input: Payload = NOTHING
    """The input."""
    key: str
    """The ordering key."""
    run_id: str | None = None
    """The id of the run. Keyrun generates one if there is none."""
    headers: dict[str, str] | None = None
    """The headers of the run."""
    tags: list[str] = attrs.field(factory=list)
    """Words by which runs can be listed."""
    priority: Priority = Priority.NORMAL
    """Decides which keys get free slots first."""
    limits: Limits | None = None
    """The limits of the run."""
    delay: float = 0
    """Seconds until the run enters the queue of its key."""


@attrs.frozen(kw_only=True)
class NewMember:
    """A run of a group to submit."""

    workflow: str
    """The name of the workflow."""
    input: Payload = NOTHING
    """The input."""
    key: str
    """The ordering key."""
    member_id: str | None = None
    """The id within the group. Default: the position in the list, from 0."""
    headers: dict[str, str] | None = None
    """The headers of the run."""
    tags: list[str] = attrs.field(factory=list)
    """Words by which runs can be listed."""
    priority: Priority = Priority.NORMAL
    """Decides which keys get free slots first."""
    limits: Limits | None = None
    """The limits of the run."""
    delay: float = 0
    """Seconds until the run enters the queue of its key."""


@attrs.frozen(kw_only=True)
class Submitted:
    """The answer to a submit."""

    run_id: str
    """The id of the run, given or generated."""
    key: str
    """The ordering key."""
    newly_submitted: bool
    """False if the run existed before the submit."""
    workflow: str
    """The name of the workflow."""
    version: int
    """The version of the workflow."""
    number: int
    """The admission number, which is the position in the order of all runs."""

    @classmethod
    def of(cls, handle: "RunHandle[Any]") -> "Submitted":
        """Return the answer that a handle stands for."""
        about = handle._submission
        assert about is not None
        return cls.of_run(about, newly_submitted=handle.newly_submitted)

    @classmethod
    def of_run(cls, about: Submission, *, newly_submitted: bool) -> "Submitted":
        """Return the answer for a run."""
        return cls(
            run_id=about.run_id,
            key=about.key,
            newly_submitted=newly_submitted,
            workflow=about.workflow,
            version=about.version,
            number=about.number,
        )


@attrs.frozen(kw_only=True)
class NotSubmitted:
    """The problem of a run that was submitted among others."""

    type: str
    """A URN with the name of the error."""
    title: str
    """The meaning of the status code."""
    status: int
    """The status code that the submit of this run alone would have had."""
    detail: str
    """What happened, and what to do."""
    error: str
    """The name of the error."""
    run_id: str | None = None
    """The id of the run, if the error is about one."""
    key: str | None = None
    """The ordering key, if the error is about one."""

    @classmethod
    def of(cls, problem: Mapping[str, Any]) -> "NotSubmitted":
        """Return the fields of a problem."""
        names = {each.name for each in attrs.fields(cls)}
        return cls(**{name: each for name, each in problem.items() if name in names})


@attrs.frozen(kw_only=True)
class SubmittedGroup:
    """The answer to the submit of a group."""

    group_id: str
    """The id of the group."""
    newly_submitted: bool
    """False if the group existed before the submit."""


@attrs.frozen(kw_only=True)
class When:
    """The times of a schedule. Give one of `cron`, `every` and `once`."""

    cron: str | None = None
    """A cron expression, such as `30 3 * * MON-FRI`."""
    timezone: str = "UTC"
    """The time zone of the cron expression."""
    every: float | None = None
    """Seconds between two firings."""
    start_at: float | None = None
    """The first firing, with `every`."""
    once_at: float | None = None
    """The only firing."""

    def timetable(self) -> "Timetable":
        """Return the timetable."""
        from keyrun.schedules import Cron, Every, Once

        given = [each for each in (self.cron, self.every, self.once_at) if each is not None]
        if len(given) != 1:
            raise Misplaced("when requires exactly one of cron, every and once_at")
        if self.cron is not None:
            return Cron(self.cron, self.timezone)
        if self.every is not None:
            return Every(self.every, start=self.start_at)
        assert self.once_at is not None
        return Once(self.once_at)

    @classmethod
    def of(cls, timetable: "Timetable") -> "When":
        """Return the fields of a timetable."""
        from keyrun.runtime.schedules.timetable import check_timetable
        from keyrun.schedules import Cron, Every

        timetable = check_timetable(timetable)
        if isinstance(timetable, Cron):
            return cls(cron=timetable.expression, timezone=timetable.timezone)
        if isinstance(timetable, Every):
            return cls(every=timetable.seconds, start_at=timetable.start)
        return cls(once_at=timetable.at)


@attrs.frozen(kw_only=True)
class MemberEnd:
    """Describe the end of a member for a Python client, which decodes the result."""

    outcome: "MemberOutcome[Any]"
    """The end of the member."""
    workflow: str | None
    """The name of its workflow. None if the run was forgotten."""
    version: int | None
    """The version of its workflow."""


@attrs.frozen(kw_only=True)
class HistoryEntry:
    """Describe one event in the history of a run. Fields that do not apply are None."""

    at: float
    """The time of the event."""
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
    value: Any = None
    """What the event carries: the input or the result of the run, the result of a step or of a
    child, or the payload of a signal."""

    @classmethod
    def of(cls, happening: "Happening", value: Callable[[bytes], Any]) -> "HistoryEntry":
        """Return the entry of an event."""
        stored = happening.stored
        return cls(
            at=happening.at,
            event=happening.event,
            step=happening.step,
            attempt=happening.attempt,
            began_at=happening.began_at,
            delay=happening.delay,
            failure=happening.failure,
            detail=happening.detail,
            who=happening.who,
            value=None if stored is None else value(stored),
        )


@attrs.frozen(kw_only=True)
class HistoryEntries:
    """Hold one page of the history of a run."""

    events: list[HistoryEntry]
    """What happened to the run, in order."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""


@attrs.frozen(kw_only=True)
class WholeHistory:
    """Hold the history of a run for a Python client."""

    events: "list[Happening]"
    """What happened to the run. The stored values are encoded without the transform of the
    runtime."""
    export: str | None
    """The records of the run as text. None if the run is unknown or a record is damaged."""


@attrs.frozen(kw_only=True)
class RecentEvents:
    """Hold the events since the answer before."""

    events: list[Event]
    """The newest events that match, the oldest of them first."""
    cursor: str
    """Pass it as `after` to get the events that follow."""
    missed: int | None
    """The number of events that are not in the answer because there were too many. None if the
    number is not known, for example because the process was started again."""


@attrs.frozen(kw_only=True)
class DeadLetterError:
    """Describe dead letters that failed with the same error."""

    workflow: str
    """The name of the workflow."""
    step: str | None
    """The name of the step that failed, without its branch and occurrence. None if no step did."""
    kind: FailureKind
    """The kind of the failure."""
    error: str | None
    """The module and name of the type of the exception. None if the failure has none."""
    runs: int
    """The number of these dead letters in the page."""
    newest_at: float | None
    """When the newest of them failed."""
    newest_run_id: str
    """The id of the newest of them."""
    reason: str
    """Why the newest of them failed."""


@attrs.frozen(kw_only=True)
class DeadLetterErrors:
    """Hold the errors of one page of the dead letters."""

    errors: list[DeadLetterError]
    """The errors, the most frequent first."""
    examined: int
    """The number of dead letters that Keyrun looked at."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""

    @classmethod
    def of(cls, page: "RunPage") -> "DeadLetterErrors":
        """Return the errors of a page of dead letters, of which the first is the newest."""
        found: dict[object, list[RunStatus]] = {}
        for run in page.runs:
            failure = run.failure
            if failure is not None:
                about = run.workflow, plain_step(failure.step), failure.kind, failure.error_type
                found.setdefault(about, []).append(run)
        errors = []
        for runs in sorted(found.values(), key=len, reverse=True):
            newest = runs[0]
            assert newest.failure is not None
            errors.append(
                DeadLetterError(
                    workflow=newest.workflow,
                    step=plain_step(newest.failure.step),
                    kind=newest.failure.kind,
                    error=newest.failure.error_type,
                    runs=len(runs),
                    newest_at=newest.ended_at,
                    newest_run_id=newest.run_id,
                    reason=newest.failure.reason,
                )
            )
        return cls(errors=errors, examined=page.examined, cursor=page.cursor)


def plain_step(step: str | None) -> str | None:
    """Return the name of a step without its branch and its occurrence: `charge` for
    `g1.0/charge#2`."""
    return None if step is None else step.rpartition("/")[2].partition("#")[0]


@attrs.frozen(kw_only=True)
class RunEnd:
    """How a run ended, or why it is quarantined."""

    state: State
    """The state of the run."""
    result: Any = None
    """The result of a run that has succeeded."""
    reason: str | None = None
    """The reason of a cancel, or of the quarantine."""
    failure: Failure | None = None
    """The failure of a run that failed."""
    cause: QuarantineCause | None = None
    """Why the run is quarantined."""

    @classmethod
    def of(cls, status: StatusRecord, value: Callable[[bytes], Any]) -> "RunEnd":
        """Return the end that a status describes."""
        return cls(
            state=status.state,
            result=None if status.result is None else value(status.result),
            reason=status.reason,
            failure=status.failure,
            cause=None if status.quarantine is None else status.quarantine.cause,
        )

    def status(self) -> StatusRecord:
        """Return the status that this end describes."""
        return StatusRecord(
            state=self.state,
            result=CODEC.encode(self.result) if self.state is State.SUCCEEDED else None,
            reason=self.reason,
            failure=self.failure,
            quarantine=None if self.cause is None else Quarantine(self.cause),
        )
