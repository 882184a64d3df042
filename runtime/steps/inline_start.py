"""Inline start: call an async function in the current task, and take a slot only if it suspends.

Most steps, nodes and entity methods never suspend. No other task can run during such a call, so the
call needs no slot, no start marker and no deadline. If the function suspends, a callback takes the
slot, stages the marker and starts the clock before any other task runs.

`Suspension` of the actors calls the callback. The workers of the actor system do so by themselves,
and other tasks run their code in `Suspension.carry`. Entity calls use the same callback. They do
not use `start_inline`, because they have no journal.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keyrun.runtime.host.watchdog import calls_a_step
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.steps.current_step import CurrentStep, enter, leave
from keyrun.runtime.steps.invocation import Raised, Returned, Started
from keyrun.runtime.steps.outcome import end_span, stage_value
from keyrun.runtime.values import Failure, FailureKind

if TYPE_CHECKING:
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.host.step_gates import GatePass
    from keyrun.runtime.run.run import Run


def too_many_iterations(run: "Run", count: int, what: str, step: str | None = None) -> Halt:
    """Return the exception that ends the run, because step or turn number `count`, which it asks
    for, is above `most_iterations` of its limits."""
    most = run.submission.limits.max_iterations
    reason = f"{what} {count}, but max_iterations is {most}"
    return run.halt(Failure(kind=FailureKind.ITERATION_LIMIT, reason=reason, step=step))


@calls_a_step
async def start_inline(
    run: "Run",
    step: "StepFunction[..., Any]",
    current: CurrentStep,
    mark: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    begin_wait: Callable[[], None],
    passed: "GatePass | None" = None,
) -> Any:
    """Start the first attempt of a step inline. Return the value, which is staged, if the function
    returned without suspending, and a `Started` in every other case. `mark` is the fingerprint of
    the arguments, and `passed` the pass of a guarded step."""
    if run.pending:
        run.begin()
    done: Raised | Returned
    suspension, tracer = run.partition.suspension, run.partition.tracer
    span = None if tracer is None else tracer.attempt(run, current)
    token = enter(current)
    suspension.callback = begin_wait
    try:
        try:
            value = await (step.function(*args, **kwargs) if kwargs else step.function(*args))
        except BaseException as error:
            from_user(error)
            raise
        if current.until is None:
            suspension.callback = None
            ident, journal = current.step, run.journal
            journal.fresh[ident] = stage_value(run, step, mark, current, value)
            if mark != 0:
                journal.marks[ident] = mark
            if current.marked:
                current.unmark()
            if passed is not None:
                passed.succeeded()
            leave(token)
            if span is not None:
                span.leave()
                span.succeeded()
                end_span(run, span)
            return value
        if suspension.callback is not None:
            # It has not suspended. It held the loop past its timeout, and the watchdog saw that.
            until = current.until
            suspension.callback = None
            begin_wait()
            current.until = until
        done = Returned(value)
    except BaseException as error:
        if suspension.callback is not None:
            suspension.callback = None
            current.until = None
        done = Raised(error)
    leave(token)
    if span is not None:
        span.leave()
        current.span = span
    return Started(current, done, passed)
