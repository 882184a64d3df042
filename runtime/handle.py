"""The handle of a run, which `submit` and `run` return."""

from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from keyrun.actors import checks
from keyrun.runtime.errors import (
    ResultTimeout,
    RunCancelled,
    RunFailed,
    RunQuarantined,
    UnknownRun,
)
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.values import RunStatus, State

if TYPE_CHECKING:
    from keyrun.runtime.runtime import Runtime

T = TypeVar("T")


class RunHandle(Generic[T]):
    """Refer to one run. `rt.submit` returns the handle of the run that it submitted, and
    `rt.run(run_id)` the handle of any run in the store."""

    __slots__ = ("_about", "_runtime", "newly_submitted")

    def __init__(self, runtime: "Runtime", about: Submission | str, newly: bool) -> None:
        self._runtime = runtime
        self._about = about
        """The submission. A handle of `rt.run` has only the run id, until a call of the handle has
        read the rest."""
        self.newly_submitted = newly
        """False if the run existed before the submit."""

    @property
    def run_id(self) -> str:
        """Return the id of the run, given or generated."""
        about = self._about
        return about if isinstance(about, str) else about.run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run.

        `rt.run(run_id)` does not read the store, so it does not know the key. The key of such a
        handle is known after the first call of the handle, for example `await run.status()`."""
        about = self._about
        if isinstance(about, str):
            raise RuntimeError(
                f"the key of the run {about!r} is not known yet, because rt.run() does not read "
                "the store; call `await run.status()` first"
            )
        return about.key

    async def result(self, *, timeout: float | None = None) -> T:
        """Wait for the end of the run, and return the value that the workflow returned.

        Raises `RunFailed` or `RunCancelled` if the run ended so, `RunQuarantined` if the run waits
        for an operator, `UnknownRun` if there is no such run or it was forgotten, and `StoreClosed`
        if the runtime closes before the run ends.

        With a `timeout`, raises `ResultTimeout`, which is a `TimeoutError`, if the run has not
        ended after that number of seconds. The run continues. With `timeout=0` the call does not
        wait."""
        about = self._about
        if isinstance(about, str):
            about = await self._find(about)
        if timeout is None:
            end = await self._runtime.wait_for_end(about)
        else:
            end = await self._wait_for_end(about, timeout)
        return self._value_of(about, end)

    @property
    def _submission(self) -> Submission | None:
        """Return what was submitted, if the handle knows it."""
        return None if isinstance(self._about, str) else self._about

    def _value_of(self, about: Submission, end: StatusRecord | None) -> T:
        """Return the value of a run that has ended, or raise why there is none."""
        if end is None:
            raise self._forgotten(about)
        if end.result is not None:
            result: T = self._runtime.decode_result(about.workflow, about.version, end.result)
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

    async def status(self) -> RunStatus:
        """Return the status of the run. Raises `UnknownRun` if there is no such run or it was
        forgotten."""
        about = self._about
        if isinstance(about, str):
            about = await self._find(about)
        status = await self._runtime.status_of(about)
        if status is None:
            raise self._forgotten(about)
        return status

    async def cancel(self) -> bool:
        """Request the cancellation of the run; see `rt.cancel`."""
        if isinstance(self._about, str):
            await self._find(self._about)
        return await self._runtime.cancel(self.run_id)

    async def _find(self, run_id: str) -> Submission:
        """Read what was submitted, and keep it: from now on the handle refers to this run."""
        self._about = found = await self._runtime.find_submission(run_id)
        return found

    async def _wait_for_end(self, about: Submission, timeout: float) -> StatusRecord | None:
        """Wait for the end of the run for at most `timeout` seconds."""
        checks.at_least("timeout", timeout, 0)
        with trio.move_on_after(timeout):
            return await self._runtime.wait_for_end(about)
        raise ResultTimeout(
            f"the run {about.run_id!r} of key {about.key!r} did not end within {timeout:g} s; the "
            "run continues: call result() again, or run.cancel() to end it",
            timeout=timeout,
            run_id=about.run_id,
            key=about.key,
        )

    @staticmethod
    def _forgotten(about: Submission) -> UnknownRun:
        return UnknownRun(
            f"the run {about.run_id!r} was forgotten", run_id=about.run_id, key=about.key
        )

    def __repr__(self) -> str:
        key = "" if isinstance(self._about, str) else f" of key {self.key!r}"
        return f"<run {self.run_id}{key}>"
