"""Call waits: steps and methods that hold a key while they wait for calls under other keys.

1. A step or method that waits for a call gives its slot back meanwhile. Otherwise steps could hold
   all slots and wait for calls that need one.
2. Keys that wait for each other would wait forever. Keyrun finds such a cycle when it closes: here
   if a call closes it, and in `children.cycles` if a child does. A call counts from before it looks
   for a cycle, and a child looks when it is durable, so at least one of the two finds the other.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.errors import CallCycle
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.runtime.entities.calls import EntityCall
    from keyrun.runtime.host.slots import Slots
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.running_step import RunningStep

FindChain = Callable[[str, str], Awaitable[list[str] | None]]
"""Returns the keys that lead from one key to another, each of which waits for the next. No other
task runs meanwhile."""


def is_workflow_code(run: "Run") -> bool:
    """Return whether the current task runs the code of the run's workflow, in its main function or
    in a branch."""
    driver = None if run.wait_slot is None else run.wait_slot.task
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and task is not driver:
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return task is not None


def call_of_own_key(call: "EntityCall", run: "Run") -> CallCycle:
    """Return the error of workflow code that calls an entity under the key of its own run."""
    return CallCycle(
        f"{call.name} would wait forever: the run {run.run_id!r} calls it and holds the key "
        f"{call.key!r} until the run ends; use another key, or call it after the run has ended",
        run_id=run.run_id,
        key=call.key,
        step=call.name,
    )


class CallWaits:
    """Knows which keys wait for which calls, and lends the slots of steps and methods that wait."""

    def __init__(self, slots: "Slots", find_chain: FindChain) -> None:
        self._slots = slots
        self._find_chain = find_chain
        self._called: dict[str, dict[EntityCall, None]] = {}
        """The calls that code which holds a key has made, by that key."""
        self._waiting: dict[EntityCall | RunningStep, int] = {}
        """The number of calls that each step and method waits for."""

    def keys(self, holder: str) -> list[str]:
        """Return the keys that the code which holds the key `holder` waits for."""
        return [
            call.key
            for call in self._called.get(holder, ())
            if call.caller is not None and not call.caller.over
        ]

    async def wait(
        self, call: "EntityCall", answer: Callable[["EntityCall"], Awaitable[Any]]
    ) -> Any:
        """Wait for the answer of a call that a step or method has made."""
        caller = call.caller
        assert caller is not None
        called = self._called.setdefault(caller.key, {})
        called[call] = None
        try:
            await self._refuse_cycle(call, caller.key)
            self._give_slot(caller)
            try:
                return await answer(call)
            finally:
                await self._take_slot(caller)
        finally:
            del called[call]
            if not called and self._called.get(caller.key) is called:
                del self._called[caller.key]

    def _give_slot(self, caller: "EntityCall | RunningStep") -> None:
        """Give the caller's slot back. A caller that has not suspended yet has none, and takes one
        as soon as it suspends."""
        waiting = self._waiting.get(caller, 0)
        self._waiting[caller] = waiting + 1
        if not waiting:
            self._slots.give()

    async def _take_slot(self, caller: "EntityCall | RunningStep") -> None:
        """Take a slot again, unless the caller waits for another call."""
        self._waiting[caller] -= 1
        if self._waiting[caller]:
            return
        del self._waiting[caller]
        if self._slots.take_nowait():
            return
        try:
            await self._slots.take(Priority.HIGH)
        except BaseException:
            # The caller is about to end, and will give back a slot that it does not have.
            self._slots.owe()
            raise

    async def _refuse_cycle(self, call: "EntityCall", holder: str) -> None:
        """Raise `CallCycle` if the key of the call waits for the key that the caller holds. No
        other task runs meanwhile."""
        found = await self._find_chain(call.key, holder)
        if found is not None:
            path = ", which waits for ".join(map(repr, found))
            raise CallCycle(
                f"{call.name} would wait forever: {holder!r} would wait for {path}; call it after "
                "the method or step has returned, or use another key",
                key=call.key,
                step=call.name,
            )
