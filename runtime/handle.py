"""The handle of a run, which `submit` returns."""

from typing import TYPE_CHECKING, Generic, TypeVar

from keyrun.runtime.errors import RunCancelled, RunFailed, RunQuarantined, UnknownRun
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.values import RunStatus, State

if TYPE_CHECKING:
    from keyrun.runtime.runtime import Runtime

T = TypeVar("T")


class RunHandle(Generic[T]):
    """Refer to one run. `newly_submitted` is False if the run existed before the submit."""

    __slots__ = ("_runtime", "_submission", "newly_submitted")

    def __init__(self, runtime: "Runtime", submission: Submission, newly: bool) -> None:
        self._runtime = runtime
        self._submission = submission
        self.newly_submitted = newly

    @property
    def run_id(self) -> str:
        """Return the id of the run, given or generated."""
        return self._submission.run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run."""
        return self._submission.key

    async def result(self) -> T:
        """Wait for the end of the run, and return the value of the workflow.

        Raises `RunFailed`, `RunCancelled`, or `RunQuarantined` if the run waits for an operator."""
        submission = self._submission
        end = await self._runtime.wait_for_end(submission)
        if end is None:
            raise UnknownRun(f"the run {self.run_id!r} was forgotten", run_id=self.run_id)
        if end.result is not None:
            workflow, version = submission.workflow, submission.version
            result: T = self._runtime.decode_result(workflow, version, end.result)
            return result
        match end.state:
            case State.CANCELLED:
                why = f": {end.reason}" if end.reason else ""
                raise RunCancelled(
                    f"the run {self.run_id!r} was cancelled{why}",
                    reason=end.reason,
                    run_id=self.run_id,
                    key=self.key,
                )
            case State.QUARANTINED:
                assert end.quarantine is not None
                reason = end.reason or ""
                raise RunQuarantined(
                    f"the run {self.run_id!r} is quarantined ({end.quarantine.cause}): {reason}; "
                    f"redrive({self.run_id!r}) tries again, cancel or forget end the run",
                    reason=reason,
                    cause=end.quarantine.cause,
                    run_id=self.run_id,
                    key=self.key,
                )
            case _:
                assert end.failure is not None
                raise RunFailed(
                    f"the run {self.run_id!r} failed: {end.failure.reason}",
                    failure=end.failure,
                    run_id=self.run_id,
                    key=self.key,
                )

    async def status(self) -> RunStatus | None:
        """Return the status of the run, or None if the run was forgotten."""
        return await self._runtime.status(self.run_id)

    async def cancel(self) -> bool:
        """Request the cancellation of the run; see `Runtime.cancel`."""
        return await self._runtime.cancel(self.run_id)

    def __repr__(self) -> str:
        return f"<run {self.run_id} of key {self.key!r}>"
