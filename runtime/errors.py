"""What can go wrong with a run, each error with the builtin it is and a way out."""

from typing import TYPE_CHECKING

from keyrun._errors import KeyrunError
from keyrun.runtime.values import QuarantineCause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyrun.runtime.policies.circuit_breaker import CircuitStatus
    from keyrun.runtime.values import Failure


class RuntimeFault(KeyrunError):
    """Base of the errors of the runtime, with what they are about."""

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        key: str | None = None,
        step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.key = key
        self.step = step


class InvalidKey(RuntimeFault, ValueError):
    """An ordering key is a non-empty string of at most 255 UTF-8 bytes."""


class InvalidRunId(RuntimeFault, ValueError):
    """A run id is 1 to 128 of A-Z, a-z, 0-9, '_' and '-'."""


class InputMismatch(RuntimeFault, ValueError):
    """The run id is taken by a run with another input, key or workflow."""


class InvalidText(RuntimeFault, ValueError):
    """A text argument has lone surrogates, which no record can hold."""


class ReservedHeader(RuntimeFault, ValueError):
    """Header names that start with 'keyrun.' are Keyrun's own."""


class UnknownWorkflow(RuntimeFault, LookupError):
    """The workflow was not given to `open_runtime(workflows=...)`. If the open itself is refused,
    `counts` has the number of unfinished runs by workflow and version that it does not have."""

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        key: str | None = None,
        counts: "Mapping[tuple[str, int], int] | None" = None,
    ) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.counts = {} if counts is None else dict(counts)


class UnknownEntity(RuntimeFault, LookupError):
    """The entity was not given to `open_runtime(entities=...)`."""


class UnknownMethod(RuntimeFault, AttributeError):
    """An entity has no public async method of this name."""


class UnknownRun(RuntimeFault, LookupError):
    """No run has this id, or it was forgotten."""


class RunEnded(RuntimeFault, RuntimeError):
    """The run has ended, so it cannot take this any more."""


class InvalidSchedule(RuntimeFault, ValueError):
    """A schedule, or its timetable, that cannot be; the message says why."""


class InvalidGroup(RuntimeFault, ValueError):
    """A group, or a member of it, that cannot be; the message says why."""


class UnknownGroup(RuntimeFault, LookupError):
    """No group has this id, or all its runs were forgotten."""


class Backpressure(RuntimeFault, TimeoutError):
    """Too many runs wait to be started."""


class RunFailed(RuntimeFault, RuntimeError):
    """The run failed; `failure` says how."""

    def __init__(self, message: str, *, failure: "Failure", run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key, step=failure.step)
        self.failure = failure


class RunCancelled(RuntimeFault, RuntimeError):
    """The run was cancelled; `reason` is the workflow's own, or None."""

    def __init__(self, message: str, *, reason: str | None, run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason


class RunQuarantined(RuntimeFault, RuntimeError):
    """From `run.result()`: the run is quarantined and waits for an operator. `reason` says why for
    people, `cause` for programs. The run has not ended: `redrive` tries it again, `cancel` and
    `forget` end it."""

    def __init__(
        self, message: str, *, reason: str, cause: QuarantineCause, run_id: str, key: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason
        self.cause = cause


class ChildFailed(RunFailed):
    """From `ctx.child`: the child failed; `failure` says how, with its own as the cause."""


class ChildCancelled(RunCancelled):
    """From `ctx.child`: the child was cancelled."""

    def __init__(
        self, message: str, *, reason: str | None, failure: "Failure", run_id: str, key: str
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id, key=key)
        self.failure = failure


class TooDeep(RuntimeFault, RecursionError):
    """Children of children of children: more than five deep."""


class StepFailed(RuntimeFault, RuntimeError):
    """A step failed for good; `failure` says how. Catch it to go on without the step."""

    def __init__(self, failure: "Failure", *, run_id: str, key: str) -> None:
        super().__init__(failure.reason, run_id=run_id, key=key, step=failure.step)
        self.failure = failure


class StepTimeout(StepFailed, TimeoutError):
    """The last attempt of a step ran out of time."""


class CallFailed(RuntimeFault, RuntimeError):
    """A call with a request id raised, now or when it was first made; `failure` says what."""

    def __init__(self, failure: "Failure", *, key: str) -> None:
        super().__init__(failure.reason, key=key, step=failure.step)
        self.failure = failure


class CallTimeout(RuntimeFault, TimeoutError):
    """A method of an entity took longer than it may. Nothing of the call is stored."""


class CallCycle(RuntimeFault, RuntimeError):
    """A call would wait for a key that waits, by way of other calls, for its caller."""


class CircuitOpen(RuntimeFault, RuntimeError):
    """The circuit breaker of a step is open, so it was not called; `status` has the numbers."""

    def __init__(
        self, message: str, *, status: "CircuitStatus", run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.status = status


class ScopeTimeout(RuntimeFault, TimeoutError):
    """A block took longer than its `fail_after`. Catch it to go on without what was in it."""


class SignalTimeout(RuntimeFault, TimeoutError):
    """What the workflow waited for did not come in time. Catch it to go on without."""


class ApprovalRejected(RuntimeFault, RuntimeError):
    """Somebody rejected at an approval gate: `by` whom, and with which `comment`."""

    def __init__(
        self, message: str, *, by: str, comment: str, run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.by = by
        self.comment = comment


class GateNotWaiting(RuntimeFault, RuntimeError):
    """The run does not wait at this approval gate, or somebody has decided already."""


class NonDeterminism(RuntimeFault, RuntimeError):
    """The workflow does not fit its journal. It asks for something else than the journal has, or
    the type of a call does not read the outcome that the journal has; `cause` tells which."""

    def __init__(
        self,
        message: str,
        *,
        run_id: str | None = None,
        key: str | None = None,
        step: str | None = None,
        cause: QuarantineCause = QuarantineCause.CONTRADICTION,
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.cause = cause


class InvalidHistory(RuntimeFault, ValueError):
    """A history that cannot be read, or cannot be replayed; the message says why."""


class WrongTask(RuntimeFault, RuntimeError):
    """A context was used outside the workflow, or outside the branch, that it belongs to."""


class TransientError(Exception):
    """For users to raise: this attempt failed, another may succeed. `retry_after` is how many
    seconds the next one is to wait at least, where that is known better than by the policy."""

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class PermanentError(Exception):
    """For users to raise: no further attempt can succeed."""


class InvalidGraph(RuntimeFault, ValueError):
    """A graph that cannot be run; `errors` lists all that is wrong with it."""

    def __init__(self, name: str, errors: list[str]) -> None:
        listed = "".join(f"\n  - {error}" for error in errors)
        super().__init__(f"the graph {name!r} cannot be run:{listed}")
        self.errors = tuple(errors)


class ConditionError(RuntimeFault, ValueError):
    """A condition that could not be answered; the message names the edge and the reason."""


class MissingExtra(RuntimeFault, ImportError):
    """A package of an extra is not installed; the message says how to install it."""


class OutputTooLarge(RuntimeFault, PermanentError, ValueError):
    """The output of a node is larger than it may be; the message names both sizes."""
