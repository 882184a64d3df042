"""One attempt of a step: the user's function, in the loop, in a thread, or in an asyncio loop.

An async function that returns without waiting for anything costs no cancel scope: it is started by
hand, and only when it waits are its deadline set and its start marker staged. On the main line of
a workflow the deadline is that of the run's own scope. When it passes, the whole workflow unwinds
and is driven again from its journal, which is what happens after a crash too; so the usual case
pays nothing for it. Branches and shielded steps have a scope of their own.
"""

import types
from collections.abc import Awaitable, Coroutine, Generator
from logging import INFO
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.current import CurrentStep, enter, leave
from keyrun.runtime.journal import Entry
from keyrun.runtime.logs import log
from keyrun.runtime.step import StepFunction

if TYPE_CHECKING:
    from keyrun.runtime.branch import Branch
    from keyrun.runtime.run import Run


class Raised:
    """What is left of a function that raised before it waited for anything."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Overrun(Exception):
    """The attempt ran out of time."""


@types.coroutine
def carry(coroutine: Coroutine[Any, Any, Any], trap: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that was started by hand and gave `trap`, as `await` would."""
    while True:
        try:
            try:
                value = yield trap
            except BaseException as error:
                trap = coroutine.throw(error)
            else:
                trap = coroutine.send(value)
        except StopIteration as stop:
            return stop.value


async def attempt(
    branch: "Branch",
    step: StepFunction[..., Any],
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    work: Awaitable[Any] | Raised | None,
) -> Any:
    """Run the function once, or go on with `work`, which is the rest of it.

    Raises `Overrun` when its time is up, except on the main line, where the cancellation of the
    run's scope does. A function that swallows its cancellation, or cannot be cancelled, is found
    out when it returns too late.
    """
    run = branch.run
    if isinstance(work, Raised):
        raise work.error
    token = enter(current)
    try:
        if branch.apart or step.set.shield:
            current.mark()
            current.shielded = step.set.shield
            with trio.CancelScope(shield=step.set.shield) as scope:
                scope.deadline = _start_clock(run, current)
                value = await _call(run, step, current, args, kwargs)
            if scope.cancelled_caught:
                raise Overrun
        else:
            if work is None:
                work = _call(run, step, current, args, kwargs)
            current.mark()
            scope = run.scope
            run.timed = True
            scope.deadline = _start_clock(run, current)
            try:
                value = await work
            finally:
                scope.deadline = run.deadline
        assert current.until is not None
        if trio.current_time() >= current.until:
            raise Overrun
        return value
    finally:
        leave(token)


def _start_clock(run: "Run", current: CurrentStep) -> float:
    """When the attempt must be over: its own timeout, or what is left of the run."""
    now = trio.current_time()
    until = current.until = now + current.timeout
    if until <= run.deadline:
        return until
    if until < inf:
        left = max(0.0, run.deadline - now)
        said = f"{current.timeout:g} s is more than the {left:.3f} s that are left of the run"
        run.write(Entry.NOTE, current.step, "timeout_clamped", said)
        if run.workflow.kind == "machine":
            run.journal.turn_entries.append(run.journal.next - 1)
        message = f"the timeout of step {current.step!r}, {said}"
        log(run, "timeout_clamped", message, current=current, level=INFO)
    return run.deadline


async def _call(
    run: "Run",
    step: StepFunction[..., Any],
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if step.is_async:
        if step.set.asyncio:
            return await run.engine.asyncio.call(step.function, args, kwargs)
        return await step.function(*args, **kwargs)
    current.in_thread = True
    watched = None if step.set.abandon else run.engine.overruns.watch(run, current)

    def in_thread() -> Any:
        if watched is not None:
            watched.begun = True
        return step.function(*args, **kwargs)

    try:
        return await trio.to_thread.run_sync(
            in_thread, abandon_on_cancel=step.set.abandon, limiter=run.engine.threads
        )
    finally:
        if watched is not None:
            run.engine.overruns.returned(watched)
