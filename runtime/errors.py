"""The errors of the runtime.

Each derives from `KeyrunError` and from the matching builtin. Its message says what happened and
what to do. `keyrun.errors` draws the hierarchy.
"""

from typing import TYPE_CHECKING

from keyrun._errors import KeyrunError
from keyrun.actors import checks
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
        """The id of the run, if the error is about one."""
        self.key = key
        """The ordering key, if the error is about one."""
        self.step = step
        """The step, if the error is about one."""


class InvalidKey(RuntimeFault, ValueError):
    """Raised if a key is not a non-empty string of at most 255 UTF-8 bytes."""


class InvalidRunId(RuntimeFault, ValueError):
    """Raised if a run id does not consist of 1 to 128 characters of A-Z, a-z, 0-9, '_' and '-'."""


class InputMismatch(RuntimeFault, ValueError):
    """Raised if a run with this id exists and has another input, key or workflow."""


class InvalidText(RuntimeFault, ValueError):
    """Raised if a text argument contains lone surrogates, which cannot be stored. Undecodable file
    names contain them."""


class ReservedHeader(RuntimeFault, ValueError):
    """Raised if the name of a header starts with 'keyrun.', which is reserved."""


class UnknownWorkflow(RuntimeFault, LookupError):
    """Raised if a workflow is not registered. Pass it to `open_runtime(workflows=[...])`."""

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
        """If `open_runtime` raises this error: the number of unfinished runs of each workflow and
        version that is not registered."""


class UnknownEntity(RuntimeFault, LookupError):
    """Raised if an entity is not registered. Pass it to `open_runtime(entities=[...])`."""


class UnknownMethod(RuntimeFault, AttributeError):
    """Raised if an entity has no public async method of this name."""


class UnknownRun(RuntimeFault, LookupError):
    """Raised if no run has this id, or the run was forgotten."""


class RunEnded(RuntimeFault, RuntimeError):
    """Raised if a run has ended, or its state does not allow the operation."""


class InvalidSchedule(RuntimeFault, ValueError):
    """Raised if an argument of a schedule is invalid. The message says which and why."""


class InvalidGroup(RuntimeFault, ValueError):
    """Raised if a group or one of its members is invalid. The message says why."""


class UnknownGroup(RuntimeFault, LookupError):
    """Raised if no group has this id, or all runs of the group were forgotten."""


class Backpressure(RuntimeFault, TimeoutError):
    """Raised if too many runs wait to start. Submit again later, or raise `max_pending`."""


class RunFailed(RuntimeFault, RuntimeError):
    """Raised by `run.result()` if the run failed."""

    def __init__(self, message: str, *, failure: "Failure", run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key, step=failure.step)
        self.failure = failure
        """The kind and the reason of the failure."""


class RunCancelled(RuntimeFault, RuntimeError):
    """Raised by `run.result()` if the run was cancelled."""

    def __init__(self, message: str, *, reason: str | None, run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason
        """The reason that the workflow gave. None for an external cancel."""


class RunQuarantined(RuntimeFault, RuntimeError):
    """Raised by `run.result()` if the run is quarantined and waits for an operator.

    The run has not ended. `rt.redrive` tries it again, `rt.cancel` and `rt.forget` end it."""

    def __init__(
        self, message: str, *, reason: str, cause: QuarantineCause, run_id: str, key: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.reason = reason
        """A sentence for people."""
        self.cause = cause
        """A code for programs."""


class ResultTimeout(RuntimeFault, TimeoutError):
    """Raised by `run.result(timeout=...)` if the run has not ended in time. The run continues."""

    def __init__(self, message: str, *, timeout: float, run_id: str, key: str) -> None:
        super().__init__(message, run_id=run_id, key=key)
        self.timeout = timeout
        """The number of seconds that `result` waited."""


class NoOwner(RuntimeFault, TimeoutError):
    """Raised if no process that owns the store answered a call in time. The call may be repeated:
    it is applied once."""


class ChildFailed(RunFailed):
    """Raised by `ctx.child` if the child failed. `failure.cause` is the failure of the child."""


class ChildCancelled(RunCancelled):
    """Raised by `ctx.child` if the child was cancelled."""

    def __init__(
        self, message: str, *, reason: str | None, failure: "Failure", run_id: str, key: str
    ) -> None:
        super().__init__(message, reason=reason, run_id=run_id, key=key)
        self.failure = failure
        """The failure of the parent, if the workflow does not catch this error."""


class TooDeep(RuntimeFault, RecursionError):
    """Raised by `ctx.child` if children are nested more than five deep."""


class StepFailed(RuntimeFault, RuntimeError):
    """Raised by `ctx.step` if a step failed and is not retried.

    Catch it to continue the workflow without the step."""

    def __init__(self, failure: "Failure", *, run_id: str, key: str) -> None:
        super().__init__(failure.reason, run_id=run_id, key=key, step=failure.step)
        self.failure = failure
        """The kind and the reason of the failure."""


class StepTimeout(StepFailed, TimeoutError):
    """Raised by `ctx.step` if the last attempt of a step exceeded its timeout."""


class CallFailed(RuntimeFault, RuntimeError):
    """Raised by `rt.call` with a request id if the method raised an exception, in this call or in
    the first call with this id."""

    def __init__(self, failure: "Failure", *, key: str) -> None:
        super().__init__(failure.reason, key=key, step=failure.step)
        self.failure = failure
        """The exception of the method, as a failure."""


class CallTimeout(RuntimeFault, TimeoutError):
    """Raised by `rt.call` if the method exceeded its timeout. No change of the call is stored."""


class CallCycle(RuntimeFault, RuntimeError):
    """Raised by `rt.call` if the call would deadlock: its key waits, directly or through other
    calls, for the caller."""


class CircuitOpen(RuntimeFault, RuntimeError):
    """Describe why a step was not called: its circuit breaker is open, and its policy is
    `when_open="fail"`. It is the cause of a `StepFailed`."""

    def __init__(
        self, message: str, *, status: "CircuitStatus", run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.status = status
        """The numbers of the circuit breaker."""


class ScopeTimeout(RuntimeFault, TimeoutError):
    """Raised if a block of `ctx.fail_after` exceeded its time.

    Catch it to continue the workflow without the block."""


class SignalTimeout(RuntimeFault, TimeoutError):
    """Raised by `ctx.wait_signal` and `ctx.approval` if no signal or decision arrived within the
    timeout.

    Catch it to continue the workflow without the signal."""


class ApprovalRejected(RuntimeFault, RuntimeError):
    """Raised by `ctx.approval` if a person rejected the run."""

    def __init__(
        self, message: str, *, by: str, comment: str, run_id: str, key: str, step: str
    ) -> None:
        super().__init__(message, run_id=run_id, key=key, step=step)
        self.by = by
        """The name of the person or service that rejected the run."""
        self.comment = comment
        """The comment of the rejection, or an empty string."""


class GateNotWaiting(RuntimeFault, RuntimeError):
    """Raised by `rt.approve` and `rt.reject` if the run does not wait at this gate, or the gate is
    already decided."""


class NonDeterminism(RuntimeFault, RuntimeError):
    """Raised if the workflow code contradicts the journal of the run.

    The code makes another call than the journal has, or the declared type of a call cannot read
    its journaled outcome. Restore the code, or register the changed code as a new version."""

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
        """`contradiction` or `outcome`."""


class InvalidHistory(RuntimeFault, ValueError):
    """Raised if a history cannot be read or replayed. The message says why."""


class WrongTask(RuntimeFault, RuntimeError):
    """Raised if a context is used outside the workflow or the branch that it belongs to."""


class TransientError(Exception):
    """Raise this in a step if the attempt failed and another attempt may succeed."""

    retry_after: float | None = None
    """Seconds that the next attempt waits at least. It also waits at least as long as the retry
    policy says."""

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        if retry_after is not None:
            checks.number("retry_after", retry_after)
        self.retry_after = retry_after


class PermanentError(Exception):
    """Raise this in a step if no further attempt can succeed. The step is not retried."""


class InvalidGraph(RuntimeFault, ValueError):
    """Raised if a graph is invalid."""

    def __init__(self, name: str, errors: list[str]) -> None:
        listed = "".join(f"\n  - {error}" for error in errors)
        super().__init__(f"the graph {name!r} is invalid:{listed}")
        self.errors = tuple(errors)
        """All problems of the graph, one sentence each."""


class ConditionError(RuntimeFault, ValueError):
    """Raised if the condition of an edge cannot be evaluated. The message names the edge and the
    reason."""


class MissingExtra(RuntimeFault, ImportError):
    """Raised if a package of an extra is not installed. The message has the command that installs
    it."""


class OutputTooLarge(RuntimeFault, PermanentError, ValueError):
    """Raised if the output of a node exceeds its limit. The message has both sizes."""
