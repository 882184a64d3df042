"""The errors of the runtime.

Each derives from `KeyrunError` and from the matching builtin. Its message says what happened and
what to do. `keyrun.errors` draws the hierarchy.
"""

from typing import TYPE_CHECKING

from keyrun._errors import KeyrunError
from keyrun.runtime.values import QuarantineCause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyrun.runtime.values import CircuitStatus, Failure


class RuntimeFault(KeyrunError):
    """Base of the errors of the runtime. It names the run, the key and the step, if any."""

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
    """A key is not a non-empty string of at most 255 UTF-8 bytes."""


class InvalidRunId(RuntimeFault, ValueError):
    """A run id does not consist of 1 to 128 characters of A-Z, a-z, 0-9, '_' and '-'."""


class InputMismatch(RuntimeFault, ValueError):
    """A run with this id exists and has another input, key or workflow."""


class InvalidText(RuntimeFault, ValueError):
    """A text argument contains lone surrogates, which cannot be stored."""


class ReservedHeader(RuntimeFault, ValueError):
    """The name of a header starts with 'keyrun.', which is reserved."""


class UnknownWorkflow(RuntimeFault, LookupError):
    """The workflow is not registered: pass it to `open_runtime(workflows=...)`.

    If `open_runtime` raises this, `counts` has the number of unfinished runs of each workflow and
    version that is not registered."""

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
    """The entity is not registered: pass it to `open_runtime(entities=...)`."""


class UnknownMethod(RuntimeFault, AttributeError):
    """The entity has no public async method of this name."""


class UnknownRun(RuntimeFault, LookupError):
    """No run has this id, or the run was forgotten."""


class RunEnded(RuntimeFault, RuntimeError):
    """The run has ended, or its state does not allow the operation."""


class InvalidSchedule(RuntimeFault, ValueError):
    """An argument of a schedule is invalid; the message says which and why."""


class InvalidGroup(RuntimeFault, ValueError):
    """A group or one of its members is invalid; the message says why."""


class UnknownGroup(RuntimeFault, LookupError):
    """No group has this id, or all runs of the group were forgotten."""


class Backpressure(RuntimeFault, TimeoutError):
    """The queue of pending runs is full: submit again later, or raise `max_pending`."""


class RunFailed(RuntimeFault, RuntimeError):
    """The run failed; `failure` has the kind and the reason."""

    def __init__(self, message: str, *, failure: "Failure", run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key, step=failure.step)
        self.failure = failure


class RunCancelled(RuntimeFault, RuntimeError):
    """The run was cancelled. `reason` is that of the workflow, and None for an external cancel."""

    def __init__(self, message: str, *, reason: str | None, run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason


class RunQuarantined(RuntimeFault, RuntimeError):
    """The run is quarantined and waits for an operator. `run.result()` raises this.

    `reason` is a sentence for people and `cause` a code for programs. The run has not ended:
    `redrive` tries it again, `cancel` and `forget` end it."""

    def __init__(
        self, message: str, *, reason: str, cause: QuarantineCause, run_id: str, key: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason
        self.cause = cause


class ChildFailed(RunFailed):
    """The child run failed. `ctx.child` raises this; `failure.cause` is that of the child."""


class ChildCancelled(RunCancelled):
    """The child run was cancelled. `ctx.child` raises this."""

    def __init__(
        self, message: str, *, reason: str | None, failure: "Failure", run_id: str, key: str
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id, key=key)
        self.failure = failure


class TooDeep(RuntimeFault, RecursionError):
    """Child runs are nested more than five deep."""


class StepFailed(RuntimeFault, RuntimeError):
    """A step failed and is not retried. `ctx.step` raises this; `failure` has the kind and reason.

    Catch it to continue the workflow without the step."""

    def __init__(self, failure: "Failure", *, run_id: str, key: str) -> None:
        super().__init__(failure.reason, run_id=run_id, key=key, step=failure.step)
        self.failure = failure


class StepTimeout(StepFailed, TimeoutError):
    """The last attempt of a step exceeded its timeout."""


class CallFailed(RuntimeFault, RuntimeError):
    """A call of an entity with a request id raised an exception, in this call or in the first call
    with this id. `failure` has the exception."""

    def __init__(self, failure: "Failure", *, key: str) -> None:
        super().__init__(failure.reason, key=key, step=failure.step)
        self.failure = failure


class CallTimeout(RuntimeFault, TimeoutError):
    """A method of an entity exceeded its timeout. No change of the call is stored."""


class CallCycle(RuntimeFault, RuntimeError):
    """The call would deadlock: its key waits, directly or through other calls, for the caller."""


class CircuitOpen(RuntimeFault, RuntimeError):
    """The step was not called because its circuit breaker is open. `status` has the numbers."""

    def __init__(
        self, message: str, *, status: "CircuitStatus", run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.status = status


class ScopeTimeout(RuntimeFault, TimeoutError):
    """The block of a `ctx.fail_after` exceeded its time.

    Catch it to continue the workflow without the block."""


class SignalTimeout(RuntimeFault, TimeoutError):
    """A signal or an approval did not arrive within the timeout.

    Catch it to continue the workflow without it."""


class ApprovalRejected(RuntimeFault, RuntimeError):
    """An approval was rejected. `by` and `comment` are those of the rejection."""

    def __init__(
        self, message: str, *, by: str, comment: str, run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.by = by
        self.comment = comment


class GateNotWaiting(RuntimeFault, RuntimeError):
    """The run does not wait at this approval gate, or the gate is already decided."""


class NonDeterminism(RuntimeFault, RuntimeError):
    """The workflow code contradicts the journal of the run.

    The code makes another call than the journal has, or the declared type of a call cannot read
    its journaled outcome; `cause` says which. Restore the code, or register the changed code as a
    new version."""

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
    """A history cannot be read or replayed; the message says why."""


class WrongTask(RuntimeFault, RuntimeError):
    """A context was used outside the workflow or the branch that it belongs to."""


class TransientError(Exception):
    """Raise this in a step if the attempt failed and another attempt may succeed.

    The next attempt waits at least `retry_after` seconds, and at least as long as the retry policy
    says."""

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class PermanentError(Exception):
    """Raise this in a step if no further attempt can succeed. The step is not retried."""


class InvalidGraph(RuntimeFault, ValueError):
    """A graph is invalid; `errors` lists all its problems."""

    def __init__(self, name: str, errors: list[str]) -> None:
        listed = "".join(f"\n  - {error}" for error in errors)
        super().__init__(f"the graph {name!r} is invalid:{listed}")
        self.errors = tuple(errors)


class ConditionError(RuntimeFault, ValueError):
    """A condition cannot be evaluated; the message names the edge and the reason."""


class MissingExtra(RuntimeFault, ImportError):
    """A package of an extra is not installed; the message has the command that installs it."""


class OutputTooLarge(RuntimeFault, PermanentError, ValueError):
    """The output of a node exceeds its limit; the message has both sizes."""
