"""Node tasks: the tasks that run the nodes of a graph.

One task runs node after node. As soon as a node suspends, another task takes the next nodes.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.graphs.activation import Activation
from keyrun.runtime.internal_errors import INTERNAL_CODE
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.runtime.steps.inline_start import start_inline
from keyrun.runtime.steps.invocation import Overrun, Raised, Started
from keyrun.runtime.steps.outcome import note_attempted
from keyrun.runtime.user_errors import has

if TYPE_CHECKING:
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.host.step_gates import GatePass
    from keyrun.runtime.run.run import Run


class NodeTask:
    """One task that runs nodes. `scope` is its cancel scope, which has the deadline of the attempt
    that was started inline."""

    __slots__ = ("_current", "_relieve", "_run", "_step", "counted", "scope")

    def __init__(self, run: "Run", relieve: Callable[[bool], None]) -> None:
        """`relieve` starts another node task when this one suspends. Its argument says whether the
        journal already counts that task."""
        self._run = run
        self._relieve = relieve
        self.scope = trio.CancelScope()
        self._current: CurrentStep | None = None
        """The attempt that was started inline and has not suspended."""
        self._step: StepFunction[..., Any] | None = None
        """The step of that attempt."""
        self.counted = False
        """Whether the journal already counts the task that would replace this one."""

    async def call(self, call: Awaitable[None]) -> None:
        """Await `call`, and let another task take the next nodes if it suspends."""
        suspension = self._run.partition.suspension
        suspension.callback = self._begin_wait
        try:
            await call
        finally:
            suspension.callback = None

    async def start(self, activation: Activation, passed: "GatePass | None") -> Any:
        """Start the step of a node inline. Return its value, which is staged, or a `Started`."""
        run, step = self._run, activation.planned.step
        assert step is not None
        current = CurrentStep(run, step, activation.ident)
        self._current, self._step = current, step
        given = (activation.given,)
        try:
            value = await start_inline(
                run, step, current, None, given, {}, self._begin_wait, passed
            )
        finally:
            self._current = None
        if type(value) is Started and self._is_overdue(value):
            return value._replace(done=Raised(Overrun()))
        return value

    def _begin_wait(self) -> None:
        """Take a slot for the attempt that was started inline, if there is one, and let another
        task take the next nodes."""
        with INTERNAL_CODE:
            current, step, run = self._current, self._step, self._run
            if current is not None:
                assert step is not None
                if step.set.compensate is not None:
                    note_attempted(run, step, current.step)
                current.begin_wait(self.scope)
            counted, self.counted = self.counted, False
            self._relieve(counted)

    def _is_overdue(self, started: Started) -> bool:
        """Return whether an attempt was cancelled because its time was up."""
        done = started.done
        if not isinstance(done, Raised) or started.current.until is None:
            return False
        if not self.scope.cancel_called or not self._run.going:
            return False
        return has(done.error, trio.Cancelled) and not has(done.error, KeyboardInterrupt)
