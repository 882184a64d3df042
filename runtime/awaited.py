"""Awaited ends: who waits for the end of which run, in this process."""

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

import trio
from outcome import Error

from keyrun.storage import StoreClosed
from keyrun.waking import Told

if TYPE_CHECKING:
    from keyrun.runtime.records import Standing

Tasks = dict[int, trio.lowlevel.Task | list[trio.lowlevel.Task]]


class Awaited:
    """Tasks by the run that they wait for: most often one, and a list of them else."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: Tasks = {}

    def wait(self, number: int) -> "Awaitable[Standing]":
        """To be awaited at once: how a run stands that has not ended yet, when its end or its
        quarantine is durable."""
        tasks = self._tasks
        task = trio.lowlevel.current_task()
        waiting = tasks.get(number)
        if waiting is None:
            tasks[number] = task
        elif isinstance(waiting, list):
            waiting.append(task)
        else:
            tasks[number] = [waiting, task]
        leave = partial(_leave, tasks, number, task)  # a closure takes longer to make
        return trio.lowlevel.wait_task_rescheduled(leave)  # noqa: ASYNC105

    def ended(self, number: int, standing: "Standing") -> None:
        """Wake the tasks that wait for a run whose end, or whose quarantine, is durable."""
        waiting = self._tasks.pop(number, None)
        if waiting is not None:
            told = Told(standing)
            for task in waiting if isinstance(waiting, list) else (waiting,):
                trio.lowlevel.reschedule(task, told)

    def close(self) -> None:
        """Nothing will end any more: send those away who wait for it."""
        while self._tasks:
            waiting = self._tasks.popitem()[1]
            for task in waiting if isinstance(waiting, list) else (waiting,):
                gone = StoreClosed(
                    "the runtime was left before the run ended; it goes on when the store is "
                    "opened again"
                )
                trio.lowlevel.reschedule(task, Error(gone))


def _leave(tasks: Tasks, number: int, task: trio.lowlevel.Task, _: object) -> trio.lowlevel.Abort:
    """What Trio calls when a task that waits is cancelled."""
    waiting = tasks[number]
    if isinstance(waiting, list) and len(waiting) > 1:
        waiting.remove(task)
    else:
        del tasks[number]
    return trio.lowlevel.Abort.SUCCEEDED
