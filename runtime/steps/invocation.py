"""One attempt of a step: call the user's function on Trio, in a thread, or on an asyncio loop.

An async function that returns without suspending costs no more than a call. If it suspends, a slot
is taken, its deadline is set and its start marker is staged. A step outside of branches sets the
deadline of the run's own scope. If that passes, the workflow is cancelled and driven again from its
journal, as after a crash. So a step usually needs no scope. Branches and shielded steps have scopes
of their own.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from keyrun._errors import KeyrunError
from keyrun.actors.errors import shown
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.host.outside import at_work
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
    """Raised if an attempt calls `sys.exit()`, which would end the process again after each
    restart."""

    def __init__(self, code: object) -> None:
        super().__init__(f"the step called sys.exit({shown(code)}); return or raise instead")


class Overrun(KeyrunError):
    """Raised if an attempt exceeds its timeout."""


def finish(run: "Run", current: CurrentStep, done: Raised | Returned) -> Any:
    """Return the value of an attempt that was started inline, or raise its error."""
    try:
        if isinstance(done, Raised):
            raise done.error
        return _in_time(run, current, done.value)
    finally:
        if current.until is not None:
            run.scope.deadline = run.deadline


def _in_time(run: "Run", current: CurrentStep, value: Any) -> Any:
    """Return the value, or raise `Overrun` if the timeout has passed: a function may ignore its
    cancellation, or cannot be cancelled. The time in which other tasks held the loop does not
    count."""
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
    """Call the function once. Raise `Overrun` if it exceeds its timeout. Outside of branches, the
    scope of the run is cancelled instead."""
    run = branch.run
    tracer = run.partition.tracer
    if tracer is not None:
        current.span = tracer.attempt(run, current)
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
        if current.span is not None:
            current.span.leave()


@calls_a_step
async def _on_asyncio(
    run: "Run",
    current: CurrentStep,
    function: Callable[..., Coroutine[Any, Any, Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    current.check_owner()  # time has passed since the gate
    return await function(*args, **kwargs)


async def _call(
    run: "Run",
    step: StepFunction[..., Any],
    current: CurrentStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    host = run.partition.host
    if step.is_async:
        if step.set.asyncio:
            call = partial(_on_asyncio, run, current, step.function)
            with at_work(host.asyncio.outside, current, in_thread=False):
                return await host.asyncio.call(call, args, kwargs)
        try:
            return await step.function(*args, **kwargs)
        except BaseException as error:
            from_user(error)
            raise
    current.in_thread = True
    watched = None if step.set.abandon else host.overruns.watch(run, current)

    def in_thread() -> Any:
        if watched is not None:
            watched.begun = True
        current.check_owner()  # time has passed since the gate
        value = step.function(*args, **kwargs)
        if iscoroutine(value):
            value.close()
            raise TypeError(
                f"{shown(step.function)} is a plain function that returned a coroutine: declare "
                "the step with `async def`"
            )
        return value

    try:
        with at_work(host.outside, current, in_thread=True):
            return await trio.to_thread.run_sync(
                in_thread, abandon_on_cancel=step.set.abandon, limiter=host.threads
            )
    except BaseException as error:
        from_user(error)
        raise
    finally:
        if watched is not None:
            host.overruns.returned(watched)
