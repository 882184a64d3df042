"""Records of a run: the submission and the status, as values and as stored fields.

`keyrun.runtime.records.tables` says in which table and under which key they are stored.
"""

from typing import Any

import attrs

from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.records.operation import Pause
from keyrun.runtime.values import (
    CompensationProgress,
    Failure,
    FailureKind,
    Priority,
    QuarantineCause,
    State,
)

SHARD, EPOCH = 0, 0
"""Reserved for a store that several machines share: the owner of a run, and since when."""

SALVAGED = "salvage"
"""The origin of the submission that replaces a damaged one."""
OF_GROUP = "group:"
"""The prefix of the origin of a member of a group."""
GENERATION = 1
"""The position of the generation in the fields of a status."""
SUBMITTED_AT = 12
"""The position of the time in the fields of a submission. Listings read this field first."""

_PRIORITIES = {int(priority): priority for priority in Priority}
_STATES = {str(state): state for state in State}
_QUARANTINED = str(State.QUARANTINED)


@attrs.frozen
class Parent:
    """The run that started a child and waits for it: its number, key and place, and the depth of
    the child below the run that has no parent."""

    number: int
    key: str
    place: int
    depth: int


# Submission and StatusRecord are made for every run, and Python calls a function with many keyword
# arguments much slower than one with positional arguments. So they do not insist on keywords.


@attrs.define
class Submission:
    """A submitted run. The number is 0 until the admission. Nothing changes after that."""

    number: int
    run_id: str
    key: str
    workflow: str
    version: int
    input: bytes
    digest: bytes | None
    """The digest of the input. None if the id was generated: a submit with the same id is rare
    then, and computes the digest."""
    headers: dict[str, str]
    tags: tuple[str, ...]
    priority: Priority
    limits: ResolvedLimits
    submitted_at: float
    delay: float
    origin: str
    parent: Parent | None = None
    at_hand: bool = False
    """Whether this object is in the queue of its key, or driven. Then the run has not ended. Not
    stored."""
    described: tuple[str, str, str] | None = attrs.field(default=None, init=False)
    """The value of `about`, made when it is first needed. Not stored."""

    @property
    def about(self) -> tuple[str, str, str]:
        """Return the id, the key and the workflow."""
        about = self.described
        if about is None:
            about = self.described = (self.run_id, self.key, self.workflow)
        return about

    def fields(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        fields = (
            SHARD,
            EPOCH,
            self.run_id,
            self.key,
            self.workflow,
            self.version,
            self.input,
            self.digest,
            self.headers,
            self.tags,
            self.priority._value_,
            self.limits.stored,
            self.submitted_at,
            self.delay,
            self.origin,
        )
        return fields if self.parent is None else (*fields, attrs.astuple(self.parent))

    @classmethod
    def read(cls, number: int, fields: list[Any]) -> "Submission":
        """Return the value that `fields` wrote."""
        (_, _, run_id, key, workflow, version, input_, digest, headers, tags, priority) = fields[
            :11
        ]
        limits, submitted_at, delay, origin = fields[11:15]
        return cls(
            number,
            run_id,
            key,
            workflow,
            version,
            input_,
            digest,
            headers,
            tuple(tags),
            _PRIORITIES[priority],
            ResolvedLimits.read(limits),
            submitted_at,
            delay,
            origin,
            Parent(*fields[15]) if len(fields) > 15 else None,
        )


@attrs.frozen
class EvictedWait:
    """The wait of an evicted run: for a time, and for signals on some channels."""

    due: float | None
    channels: tuple[str, ...]


@attrs.frozen
class Quarantine:
    """Why a run is quarantined. `fingerprint` belongs to the workflow that contradicted the
    journal, if it has one: the same code would contradict the journal again."""

    cause: QuarantineCause
    fingerprint: bytes | None = None


DAMAGED = Quarantine(QuarantineCause.DAMAGED)


@attrs.frozen(kw_only=True)
class Summary:
    """Counts over the whole journal of a run. They are stored when a run ends or is evicted, so
    that its progress can be shown without reading the journal."""

    retrying: int = 0
    waiting: int = 0
    failed: int = 0
    recent: int = 0
    """The number of steps that were done in this generation."""
    last_failure: Failure | None = None
    """The failure of the latest failed attempt. None if the failure of the run says more."""
    nodes: dict[str, int] | None = None
    """For a graph, the number of nodes in each state."""
    items: dict[str, list[int]] | None = None
    """For a graph, how many items each map has, and how many are done, have failed and are under
    way."""

    def fields(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        failure = write_failure(self.last_failure)
        fields = (self.retrying, self.waiting, self.failed, self.recent, failure, self.nodes)
        return (*fields, self.items) if self.items else fields

    @classmethod
    def read(cls, fields: list[Any]) -> "Summary":
        """Return the value that `fields` wrote."""
        retrying, waiting, failed, recent, failure, nodes = fields[:6]
        return cls(
            retrying=retrying,
            waiting=waiting,
            failed=failed,
            recent=recent,
            last_failure=read_failure(failure),
            nodes=nodes,
            items=fields[6] if len(fields) > 6 else None,
        )


Counted = tuple[bytes | None, str]
"""What an unfinished run is counted as: the fingerprint of its code, and its state."""
AS_PENDING: Counted = (None, "pending")
EVICTED = "*"
"""The mark behind the state of a run that is counted as evicted."""
ASIDE = "aside"
"""The state as which a run is counted whose records are damaged and that was set aside."""


@attrs.define
class StatusRecord:
    """The stored status of a run. `place` is None until a delayed run is due."""

    state: State = State.PENDING
    generation: int = 1
    place: int | None = None
    started_at: float | None = None
    deadline: float | None = None
    ended_at: float | None = None
    steps_done: int = 0
    step: str | None = None
    attempt: int = 0
    waiting_on: str | None = None
    result: bytes | None = None
    reason: str | None = None
    failure: Failure | None = None
    cancel_requested: bool = False
    paused: bool = False
    evicted_wait: EvictedWait | None = None
    """The wait of the run if it was evicted. It may be out of date: the record in `queue` says
    whether the run is evicted."""
    fingerprint: bytes | None = None
    """The fingerprint of the code that started the run: see
    `keyrun.runtime.definitions.fingerprint`."""
    patches: dict[str, bool] | None = None
    """The answers of `ctx.patched`, by name."""
    quarantine: Quarantine | None = None
    """Why the run is quarantined. None in any other state."""
    journal_next: int | None = None
    """The sequence number of the next journal entry when this record was stored. The status is not
    stored with every step, so later entries may know more. None if the number is unknown."""
    summary: Summary | None = None
    """The counts of an evicted or ended run. None if they are all zero."""
    compensation: CompensationProgress | None = None
    """The progress of the compensation, if there is anything to compensate."""
    pause: Pause | None = None
    """Since when the run is paused, if it is and that is known. It is stored as `paused`."""

    @classmethod
    def damaged(cls, error: Exception) -> "StatusRecord":
        """Return the status of a run that cannot be read because of `error`."""
        return cls(state=State.QUARANTINED, reason=str(error), quarantine=DAMAGED)

    def unregistered(self, submission: "Submission") -> "StatusRecord":
        """Return the status of the run in an open that does not have its workflow."""
        return attrs.evolve(
            self,
            state=State.QUARANTINED,
            reason=not_registered(submission),
            waiting_on=None,
            quarantine=Quarantine(QuarantineCause.UNREGISTERED),
        )

    def visible_state(self) -> State:
        """Return the state as the caller sees it: a cancel request or a pause comes before what the
        run does."""
        state = self.state
        if state.terminal or state is State.QUARANTINED:
            return state
        if self.cancel_requested:
            return State.CANCELLING
        return State.PAUSED if self.paused else state

    def counted(self) -> Counted:
        """Return what an unfinished run with this stored status is counted as."""
        if self.state is State.QUARANTINED and self.place is None:
            return self.fingerprint, ASIDE
        state: str = self.visible_state()._value_
        return self.fingerprint, state if self.evicted_wait is None else state + EVICTED

    def lift_quarantine(self) -> None:
        """Let the run resume where it was."""
        self.state = State.PENDING if self.started_at is None else State.RUNNING
        self.reason = self.quarantine = None

    def fields(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        held, undone = self.quarantine, self.compensation
        return (
            self.state._value_,
            self.generation,
            self.place,
            self.started_at,
            self.deadline,
            self.ended_at,
            self.steps_done,
            self.step,
            self.attempt,
            self.waiting_on,
            self.result,
            self.reason,
            self.failure and write_failure(self.failure),
            self.cancel_requested,
            self.paused and (self.pause is None or (self.pause.at, self.pause.by)),
            self.evicted_wait and (self.evicted_wait.due, self.evicted_wait.channels),
            self.fingerprint,
            self.patches,
            held and (held.cause._value_, held.fingerprint),
            self.journal_next,
            self.summary and self.summary.fields(),
            undone and (undone.total, undone.done, undone.step, undone.left),
        )

    @classmethod
    def read(cls, fields: list[Any]) -> "StatusRecord":
        """Return the value that `fields` wrote."""
        state, generation, place, started_at, deadline, ended_at, steps_done, step = fields[:8]
        attempt, waiting_on, result, reason, failure, cancel_requested, paused = fields[8:15]
        later = (*fields[15:22], None, None, None, None, None, None, None)
        evicted_wait, fingerprint, patches, held, journal_next, summary, undone = later[:7]
        quarantine = None
        if held is not None:
            quarantine = Quarantine(QuarantineCause(held[0]), held[1])
        elif state == _QUARANTINED:
            quarantine = _recognised(reason or "", place)
        return cls(
            _STATES[state],
            generation,
            place,
            started_at,
            deadline,
            ended_at,
            steps_done,
            step,
            attempt,
            waiting_on,
            result,
            reason,
            failure and read_failure(failure),
            cancel_requested,
            bool(paused),
            evicted_wait and EvictedWait(evicted_wait[0], tuple(evicted_wait[1])),
            fingerprint,
            patches,
            quarantine,
            journal_next,
            summary and Summary.read(summary),
            undone and _read_compensation(*undone),
            (paused and Pause.read(paused)) or None,
        )


def not_registered(submission: Submission) -> str:
    """Return the reason of a quarantine for a workflow that is not registered."""
    return (
        f"the workflow {submission.workflow!r} version {submission.version} is not registered; "
        "pass it to open_runtime(workflows=[...])"
    )


def _read_compensation(
    total: int, done: int, step: str | None, left: list[str]
) -> CompensationProgress:
    return CompensationProgress(total=total, done=done, step=step, left=tuple(left))


def _recognised(reason: str, place: int | None) -> Quarantine:
    """Return the cause of a quarantine that an older Keyrun stored with its reason only."""
    if place is None:
        return DAMAGED
    if reason.startswith("the workflow ") and " is not registered; " in reason:
        return Quarantine(QuarantineCause.UNREGISTERED)
    if " that the step cannot have: " in reason:
        return Quarantine(QuarantineCause.OUTCOME)
    return Quarantine(QuarantineCause.CONTRADICTION)


def write_end(status: StatusRecord) -> tuple[Any, ...]:
    """Return the stored fields of the end of one generation."""
    failure = write_failure(status.failure)
    began, ended = status.started_at, status.ended_at
    return began, ended, status.state._value_, status.reason, failure


def write_failure(failure: Failure | None) -> tuple[Any, ...] | None:
    """Return the stored fields of a failure."""
    if failure is None:
        return None
    fields = (
        str(failure.kind),
        failure.reason,
        failure.step,
        failure.attempt,
        failure.error_type,
        failure.traceback,
        failure.elapsed,
        write_failure(failure.cause),
    )
    if failure.numbers is None and not failure.left:
        return fields
    return (*fields, failure.numbers, failure.left)


def read_failure(fields: list[Any] | None) -> Failure | None:
    """Return the failure that `write_failure` wrote."""
    if fields is None:
        return None
    kind, reason, step, attempt, error_type, traceback, elapsed, cause, *more = fields
    numbers, left = more or (None, ())
    return Failure(
        kind=FailureKind(kind),
        reason=reason,
        step=step,
        attempt=attempt,
        error_type=error_type,
        traceback=traceback,
        elapsed=elapsed,
        cause=read_failure(cause),
        numbers=numbers,
        left=tuple(left),
    )
