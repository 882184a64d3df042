"""Wait in a Trio task for the end of a run."""

from collections.abc import Awaitable
from functools import partial

import trio
from outcome import Error

from keyrun._waking import WakeValue
from keyrun.runtime.records.submission import Standing
from keyrun.runtime.run.run import Run
from keyrun.runtime.runs import End, EndCallback, NoEnd, RunTable
from keyrun.storage import StoreClosed


def wait_for_end(runs: RunTable, number: int) -> Awaitable[Standing | None]:
    """Return an awaitable for the status of a run that has not ended yet, when its end or its
    quarantine is durable. It gives None if the run is forgotten. Await it at once."""
    task = trio.lowlevel.current_task()
    # To make a closure takes longer than to make a partial.
    callback = partial(_wake, task)
    runs.when_ended(number, callback)
    return trio.lowlevel.wait_task_rescheduled(  # noqa: ASYNC105
        partial(_leave, runs, number, callback)
    )


def _wake(task: trio.lowlevel.Task, number: int, end: End) -> None:
    if isinstance(end, Run):
        trio.lowlevel.reschedule(task, WakeValue(end.standing))
    elif isinstance(end, Standing):
        trio.lowlevel.reschedule(task, WakeValue(end))
    elif end is NoEnd.FORGOTTEN:
        trio.lowlevel.reschedule(task, WakeValue(None))
    else:
        closed = StoreClosed(
            "the runtime was left before the run ended; it goes on when the store is opened again"
        )
        trio.lowlevel.reschedule(task, Error(closed))


def _leave(runs: RunTable, number: int, callback: EndCallback, _: object) -> trio.lowlevel.Abort:
    """Trio calls this when a task that waits is cancelled."""
    runs.ignore_end(number, callback)
    return trio.lowlevel.Abort.SUCCEEDED
