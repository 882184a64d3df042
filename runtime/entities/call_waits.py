"""Waits: steps and methods that hold a key and wait for calls under other keys.

1. Who waits does nothing, so its slot is for others meanwhile. Else steps could hold all slots and
   wait for calls that need one.
2. Keys that wait for each other would do so for ever. Such a circle is found when it closes: here
   if that is a call, and in `circles` if it is a child. A call counts from before it looks, and a
   child looks when it is durable, so that of two at least one finds the other.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.children.cycles import chain
from keyrun.runtime.errors import CallCycle
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.runtime.entities.calls import Call
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.running_step import RunningStep


def is_driven_here(run: "Run") -> bool:
    """Whether the current task runs the code of a workflow, in its main line or in a branch."""
    driver = None if run.seat is None else run.seat.task
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and task is not driver:
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return task is not None


def of_own_key(call: "Call", run: "Run") -> CallCycle:
    """What the code of a workflow gets that calls the key of its run."""
    return CallCycle(
        f"{call.name} would never begin: the run {run.run_id!r} holds its key {call.key!r} until "
        "it ends, and would wait for this; call it under another key, or when the run has ended",
        run_id=run.run_id,
        key=call.key,
        step=call.name,
    )


class Waits:
    """Who waits for which calls."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self._called: dict[str, dict[Call, None]] = {}
        """What code that holds a key has called, by that key."""
        self._waiting: dict[Call | RunningStep, int] = {}
        """For how many calls each step and method waits."""

    def keys(self, holder: str) -> list[str]:
        """The keys that code waits for which holds a key."""
        return [
            call.key
            for call in self._called.get(holder, ())
            if call.above is not None and not call.above.over
        ]

    async def wait(self, call: "Call", answer: Callable[["Call"], Awaitable[Any]]) -> Any:
        """Wait for the answer to what a step or method calls."""
        above = call.above
        assert above is not None
        called = self._called.setdefault(above.key, {})
        called[call] = None
        try:
            await self._refuse_cycle(call, above.key)
            self._lend(above)
            try:
                return await answer(call)
            finally:
                await self._take_back(above)
        finally:
            del called[call]
            if not called and self._called.get(above.key) is called:
                del self._called[above.key]

    def _lend(self, above: "Call | RunningStep") -> None:
        """Leave the slot to others. If the code has not waited for anything it has none yet, and
        takes one as soon as it does."""
        waiting = self._waiting.get(above, 0)
        self._waiting[above] = waiting + 1
        if not waiting:
            self._partition.slots.give()

    async def _take_back(self, above: "Call | RunningStep") -> None:
        """Go on, with a slot if there is nothing else that is waited for."""
        self._waiting[above] -= 1
        if self._waiting[above]:
            return
        del self._waiting[above]
        slots = self._partition.slots
        if slots.take_nowait():
            return
        try:
            await slots.take(Priority.HIGH)
        except BaseException:
            # It is about to end, and will give back what it has not.
            slots.owe()
            raise

    async def _refuse_cycle(self, call: "Call", holder: str) -> None:
        """Raise if the key that is called waits for the one that is held. Nothing is awaited here
        that lets another task run."""
        found = await chain(self._partition, call.key, holder)
        if found is not None:
            path = ", which waits for ".join(map(repr, found))
            raise CallCycle(
                f"{call.name} would never begin: {holder!r} would wait for {path}; call it after "
                "the method or step has returned, or under another key",
                key=call.key,
                step=call.name,
            )
