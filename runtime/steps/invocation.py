"""One attempt of a step: the user's function, in the loop, in a thread, or in an asyncio loop.

An async function that returns without waiting for anything costs no more than a call: only when it
waits are its deadline set, a slot taken and its start marker staged. On the main line of a
workflow the deadline is that of the run's own scope. When it passes, the whole workflow unwinds
and is driven again from its journal, which is what happens after a crash too; so the usual case
pays nothing for it. Branches and shielded steps have a scope of their own.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from keyrun._errors import KeyrunError
from keyrun.actors.errors import shown
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.host.watchdog import calls_a_step
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.steps.current_step import CurrentStep, enter, leave

if TYPE_CHECKING:
    from keyrun.runtime.host.step_gates import GatePass
    from keyrun.runtime.run.branch import Branch
    from keyrun.runtime.run.run import Run


class Raised(NamedTuple):
    """The error of a function that was started inline."""

    error: BaseException


class Returned(NamedTuple):
    """The value of a function that was started inline and has suspended."""

    value: Any


class Started(NamedTuple):
    """An attempt that was started inline and suspended or raised an error. Its function has ended.
    `passed` is the pass of a guarded step."""

    current: CurrentStep
    done: Raised | Returned
    passed: "GatePass | None" = None


class Exited(KeyrunError, RuntimeError):
    """The attempt called `sys.exit()`. That would end the process, and again after each restart."""

    def __init__(self, code: object) -> None:
        super().__init__(f"the step called sys.exit({shown(code)}); return or raise instead")


class Overrun(KeyrunError):
    """The attempt ran out of time."""


def finish(run: "Run", current: CurrentStep, done: Raised | Returned) -> Any:
    """What came of an attempt on the main line."""
    try:
        if isinstance(done, Raised):
            raise done.error
        return _in_time(run, current, done.value)
    finally:
        if current.until is not None:
            run.scope.deadline = run.deadline


def _in_time(run: "Run", current: CurrentStep, value: Any) -> Any:
    """A function that swallows its cancellation, or cannot be cancelled, is found out here. It is
    not blamed for the time that others held the loop."""
    assert current.until is not None
    now = trio.current_time()
    if now >= current.until:
        run.partition.host.watchdog.credit()
        if now >= current.until:
            raise Overrun
    return value


@calls_a_step
async def attempt(
    branch: "Branch",
    step: StepFunction[..., Any],
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the function once. Raises `Overrun` when its time is up, except on the main line, where
    the cancellation of the run's scope does."""
    run = branch.run
    token = enter(current)
    try:
        if branch.apart or step.set.shield:
            current.shielded = step.set.shield
            with trio.CancelScope(shield=step.set.shield) as scope:
                current.start(scope)
                value = await _call(run, step, current, args, kwargs)
            if scope.cancelled_caught:
                raise Overrun
        else:
            current.start(run.scope)
            try:
                return _in_time(run, current, await _call(run, step, current, args, kwargs))
            finally:
                run.scope.deadline = run.deadline
        return _in_time(run, current, value)
    finally:
        leave(token)


@calls_a_step
async def _on_asyncio(
    run: "Run",
    current: CurrentStep,
    function: Callable[..., Coroutine[Any, Any, Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    return await function(*args, **kwargs)


async def _call(
    run: "Run",
    step: StepFunction[..., Any],
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if step.is_async:
        if step.set.asyncio:
            call = partial(_on_asyncio, run, current, step.function)
            return await run.partition.host.asyncio.call(call, args, kwargs)
        try:
            return await step.function(*args, **kwargs)
        except BaseException as error:
            from_user(error)
            raise
    current.in_thread = True
    watched = None if step.set.abandon else run.partition.host.overruns.watch(run, current)

    def in_thread() -> Any:
        if watched is not None:
            watched.begun = True
        return step.function(*args, **kwargs)

    try:
        return await trio.to_thread.run_sync(
            in_thread, abandon_on_cancel=step.set.abandon, limiter=run.partition.host.threads
        )
    except BaseException as error:
        from_user(error)
        raise
    finally:
        if watched is not None:
            run.partition.host.overruns.returned(watched)
