"""Wait in a Trio task for the end of a run."""

from collections.abc import Awaitable

from outcome import Error, Outcome
from trio.lowlevel import Abort, current_task, reschedule, wait_task_rescheduled

from keyrun._waking import WakeValue
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import End, NoEnd, RunTable
from keyrun.storage import StoreClosed


def end_status(end: End) -> Outcome[StatusRecord | None]:
    """Return the status that an end has, None for a run that was forgotten, or the error for a
    runtime that was closed before the end."""
    if isinstance(end, Run):
        return WakeValue(end.status)
    if isinstance(end, StatusRecord):
        return WakeValue(end)
    if end is NoEnd.FORGOTTEN:
        return WakeValue(None)
    return Error(
        StoreClosed(
            "the runtime was closed before the run ended; the run resumes when the store is "
            "opened again"
        )
    )


class EndWaiter:
    """A task that waits for the end of a run. One small object: every run has such a waiter."""

    __slots__ = ("_number", "_runs", "_task")

    def __init__(self, runs: RunTable, number: int) -> None:
        self._runs = runs
        self._number = number
        self._task = current_task()

    def __call__(self, number: int, end: End) -> None:
        """Wake the task with the status of the run, or with the reason why there is no end."""
        reschedule(self._task, end_status(end))

    def leave(self, _: object) -> Abort:
        """Stop waiting, because the task is cancelled."""
        self._runs.ignore_end(self._number, self)
        return Abort.SUCCEEDED


def wait_for_end(runs: RunTable, number: int) -> Awaitable[StatusRecord | None]:
    """Return an awaitable for the status of a run that has not ended yet, when its end or its
    quarantine is durable. It gives None if the run is forgotten. Await it at once."""
    waiter = EndWaiter(runs, number)
    runs.when_ended(number, waiter)
    return wait_task_rescheduled(waiter.leave)  # noqa: ASYNC105
