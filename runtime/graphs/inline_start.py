"""Sprints: nodes that are begun with no more ado than a call.

The usual node is new, nothing stands in its way, and it waits for nothing: it is called right where
it is taken, and then takes no slot, since nobody else could run meanwhile. One that has to wait
takes its slot, its start marker and its deadline then, and another task goes on with the rest.
"""

from collections.abc import Coroutine, Generator
from types import coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs
import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.graphs.activation import Activation
from keyrun.runtime.host.step_gates import Pass
from keyrun.runtime.internal_errors import as_internal
from keyrun.runtime.steps.current_step import CurrentStep, enter, leave
from keyrun.runtime.steps.deadline import start_clock
from keyrun.runtime.steps.invocation import Overrun, Raised, Returned
from keyrun.runtime.steps.outcome import note_attempted, note_undoable, stage_value
from keyrun.runtime.user_errors import has

if TYPE_CHECKING:
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.run.run import Run

R = TypeVar("R")


class Relief(Protocol):
    """Who sends another task when one has to wait."""

    def relieve(self, *, counted: bool) -> None: ...


class Seat:
    """The place of one serving task. `scope` carries the deadline of the attempt that it is in."""

    __slots__ = ("_relief", "_run", "counted", "current", "scope", "step")

    def __init__(self, run: "Run", relief: Relief) -> None:
        self._run = run
        self._relief = relief
        self.scope = trio.CancelScope()
        self.current: CurrentStep | None = None
        """The attempt that was begun with no more ado than a call."""
        self.step: StepFunction[..., Any] | None = None
        """What it is an attempt of."""
        self.counted = False
        """Whether the task that would go on in its place counts already."""

    def waits(self) -> None:
        """What is awaited waits for the first time."""
        current, run = self.current, self._run
        if current is not None:
            partition = run.partition
            partition.slots.free -= 1
            run.current[current.step] = current
            current.mark()
            step = self.step
            if step is not None and step.set.compensate is not None:
                note_attempted(run, step, current.step)
            if partition.feed is not None:
                emitter.step_started(partition.feed, run, current)
            self.scope.deadline = start_clock(run, current)
        counted, self.counted = self.counted, False
        self._relief.relieve(counted=counted)

    def out_of_time(self, error: BaseException) -> bool:
        """Whether an attempt ended like this since its time was up."""
        if not self.scope.cancel_called or not self._run.going:
            return False
        return has(error, trio.Cancelled) and not has(error, KeyboardInterrupt)


@attrs.frozen
class Spent:
    """An attempt that was begun and did not simply return: what came of it."""

    started: tuple[CurrentStep, Raised | Returned]
    passed: Pass | None


@coroutine
def attended(call: Coroutine[Any, Any, R], seat: Seat) -> Generator[Any, Any, R]:
    """Await `call`, and tell `seat` when it first waits."""
    try:
        trap = call.send(None)
        try:
            seat.waits()
        except BaseException as error:
            # What has begun ends by that, and is not left in the middle.
            trap = call.throw(as_internal(error))
    except StopIteration as stop:
        value: R = stop.value
        return value
    while True:
        try:
            try:
                sent = yield trap
            except BaseException as error:
                trap = call.throw(error)
            else:
                trap = call.send(sent)
        except StopIteration as stop:
            value = stop.value
            return value


async def sprint(run: "Run", activation: Activation, seat: Seat, passed: Pass | None = None) -> Any:
    """The value of a node, journaled, or `Spent`. `passed` is what a guarded one holds."""
    step = activation.station.step
    assert step is not None
    if run.pending:
        run.begin()
    timeout = step.timeout_in(run.submission.limits)
    current = CurrentStep(run, activation.ident, 1, run.partition.wall(), False, timeout)
    token = enter(current)
    seat.current, seat.step = current, step
    done: Raised | Returned
    try:
        value = await attended(step.function(activation.given), seat)
        if not current.marked:
            payload = stage_value(run, step, None, current, value)
            run.journal.fresh[current.step] = payload
            run.journal.marks[current.step] = None
            if step.set.compensate is not None:
                note_undoable(run, step, current.step)
            if passed is not None:
                passed.succeeded()
            return value
        done = Returned(value)
    except BaseException as error:
        done = Raised(Overrun() if current.marked and seat.out_of_time(error) else error)
    finally:
        seat.current = None
        leave(token)
    return Spent((current, done), passed)
