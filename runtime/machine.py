"""Machines: workflows written as one function that is called turn after turn.

A turn is a step. It returns what comes next, and only the latest turn is kept, so a machine may
turn for years at a constant cost on the disk.
"""

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from keyrun.runtime import telling
from keyrun.runtime.current import CurrentStep, Draft, current_step
from keyrun.runtime.journal import Call, Entry, Memory
from keyrun.runtime.limits import Limits
from keyrun.runtime.outcome import step_failed
from keyrun.runtime.retry import Retry
from keyrun.runtime.run import Run
from keyrun.runtime.step import StepFunction, StepOptions
from keyrun.runtime.stepping import halt
from keyrun.runtime.trying import attempts, ready
from keyrun.runtime.values import Failure, FailureKind
from keyrun.runtime.verdict import CancelVerdict
from keyrun.runtime.wording import a_reason
from keyrun.runtime.workflow import Workflow

if TYPE_CHECKING:
    from keyrun.runtime.branch import Branch
    from keyrun.runtime.context import Context

T = TypeVar("T")


@attrs.frozen
class Continue:
    """Turn again with `payload`, at once or `after` so many seconds."""

    payload: Any = None
    after: float = attrs.field(default=0.0, kw_only=True)

    @after.validator
    def _check(self, attribute: object, value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"after must be at least 0 seconds, got {value!r}")


@attrs.frozen
class Succeed:
    """The run has succeeded with `result`."""

    result: Any = None


@attrs.frozen
class Fail:
    """The run has failed, by the machine's own judgement: no dead letter."""

    reason: str = attrs.field(converter=a_reason)


@attrs.frozen
class Cancel:
    """The run is cancelled, for a reason of the machine's own."""

    reason: str = attrs.field(converter=a_reason)


Verdict = Continue | Succeed | Fail | Cancel
_LAST = {"succeed": Succeed, "fail": Fail, "cancel": Cancel}
"""What ends a machine, as it is stored."""


class Turn:
    """What a machine knows when it is called: the number of the turn from 0, and its payload."""

    __slots__ = ("number", "payload")

    def __init__(self, number: int, payload: Any) -> None:
        self.number = number
        self.payload = payload

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return current_step().run_id

    @property
    def key(self) -> str:
        """The ordering key."""
        return current_step().key

    @property
    def headers(self) -> dict[str, str]:
        """What was given to `submit`."""
        return current_step().headers

    @property
    def attempt(self) -> int:
        """Which attempt of this turn this is, from 1."""
        return current_step().attempt

    @property
    def state(self) -> Draft:
        """The durable mapping of the key; see `current_step().state`."""
        return current_step().state

    @property
    def memo(self) -> Draft:
        """A mapping that survives the attempts of this turn."""
        return current_step().memo

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for the run to be cancelled."""
        return current_step().cancel_requested


def machine(
    *,
    name: str | None = None,
    version: int = 1,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    retry: Retry | None = None,
    shield: bool = False,
) -> Callable[[Callable[[Turn], Coroutine[Any, Any, Verdict]]], Workflow[Any, Any]]:
    """Make a workflow of `async def turn(t: Turn)` that returns `Continue`, `Succeed`, `Fail` or
    `Cancel`. `max_iterations` limits its turns."""

    def decorate(function: Callable[[Turn], Coroutine[Any, Any, Verdict]]) -> Workflow[Any, Any]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"a machine is an async function, and {function!r} is none")
        step: StepFunction[..., Any] = StepFunction(
            function, StepOptions(name="turn", shield=shield), Any
        )
        step.complete = _turned

        async def loop(context: "Context", input_: Any) -> Any:
            return await _run(context.branch, step, input_)

        loop.__doc__ = function.__doc__
        return Workflow(
            loop,
            name=name or function.__name__,
            version=version,
            limits=limits,
            retry=retry,
            input_type=Any,
            result_type=Any,
            kind="machine",
        )

    return decorate


async def _run(branch: "Branch", step: StepFunction[..., Any], input_: Any) -> Any:
    run = branch.run
    branch.check()
    number, payload, timer = await _latest(run, input_)
    while True:
        if timer is not None:
            due, length = timer
            await run.wait(min(due - run.engine.wall(), length), "timer")
            await ready(run)
        most = run.submission.limits.max_iterations
        if most is not None and number >= most:
            reason = f"the machine asked for turn {number + 1}, and max_iterations is {most}"
            raise halt(run, Failure(kind=FailureKind.ITERATION_LIMIT, reason=reason))
        verdict = await _turn(branch, step, number, payload)
        match verdict:
            case Continue(payload=payload, after=after):
                number += 1
                timer = (run.engine.wall() + after, after) if after else None
            case Succeed(result=result):
                return result
            case Fail(reason=reason):
                raise halt(run, Failure(kind=FailureKind.VERDICT, reason=reason))
            case Cancel(reason=reason):
                raise halt(run, CancelVerdict(reason))


async def _latest(run: Run, input_: Any) -> tuple[int, Any, tuple[float, float] | None]:
    turn = run.journal.turn
    if turn is None:
        return 0, input_, None
    number, payload, timer, _ = turn
    return number, run.engine.codec.decode(payload), timer and (timer[0], timer[1])


async def _turn(
    branch: "Branch", step: StepFunction[..., Any], number: int, payload: Any
) -> Verdict:
    run = branch.run
    ident = f"turn-{number}"
    memory = run.journal.memory(ident)
    if memory.outcome is not None:
        run.journal.deliver(memory)
        if memory.outcome is Entry.DONE:
            name, value = memory.payload
            last: Verdict = _LAST[name](run.engine.codec.decode(value))
            return last
        assert memory.failure is not None
        raise step_failed(run, memory.failure)
    memory.fingerprint = 0
    verdict: Verdict = await attempts(branch, step, ident, memory, (Turn(number, payload),), {})
    return verdict


def _keep(run: Run, current: CurrentStep, last: Succeed | Fail | Cancel) -> None:
    """Stage what the last turn decided. As a rule that is in the commit that ends the run; but not
    if the run is held, or left, before it has ended."""
    value = last.result if isinstance(last, Succeed) else last.reason
    payload = [type(last).__name__.lower(), run.engine.codec.encode(value)]
    run.write(Entry.DONE, current.step, int(Call.STEP), 0, current.attempt, current.begun, payload)


def _turned(run: Run, memory: Memory, current: CurrentStep, value: Any) -> None:
    """Stage what a turn decided: the next turn takes its place, and its failures are forgotten."""
    if not isinstance(value, Continue | Succeed | Fail | Cancel):
        raise TypeError(
            f"a machine returns Continue, Succeed, Fail or Cancel, and this turn returned {value!r}"
        )
    journal, engine = run.journal, run.engine
    held = run.line.holder is current
    if held:
        current.seal_state()
    if isinstance(value, Continue):
        payload = engine.codec.encode(value.payload)
        timer = (engine.wall() + value.after, value.after) if value.after else None
        number = int(current.step.partition("-")[2]) + 1
        key = engine.ledger.entry(run.number, 0)
        upto = journal.next
        fields = (Entry.TURN, "turn", engine.wall(), number, payload, timer, journal.retries, upto)
        run.put("journal", key, *fields)
        journal.turn = (number, payload, timer, upto)
    elif run.held or run.unwinding is not None:
        _keep(run, current, value)
    for sequence in journal.turn_entries:
        run.delete("journal", engine.ledger.entry(run.number, sequence))
    journal.turn_entries = ()
    del journal.memories[current.step]
    if held:
        run.line.keep_state(run, current)
    if current.step in run.memos:
        del run.memos[current.step]
        run.delete("memo", engine.ledger.step(run.number, current.step))
    run.standing.steps_done += 1
    if engine.feed is not None:
        telling.step_completed(engine.feed, run, current, engine.wall())
