"""Node execution: runs one node, from its journal entries to its end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from keyrun.runtime.errors import ChildCancelled, ChildFailed, StepFailed
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.node import FailurePort, read, stored
from keyrun.runtime.graphs.node_backpressure import PlaceReservations
from keyrun.runtime.graphs.node_input import NodeInput
from keyrun.runtime.graphs.node_task import NodeTask
from keyrun.runtime.internal_errors import from_user, is_internal
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import CallRecord
from keyrun.runtime.redaction import Redaction
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.steps.attempts import attempts
from keyrun.runtime.steps.execution import replayed
from keyrun.runtime.steps.inline_start import too_many_iterations
from keyrun.runtime.steps.invocation import Started
from keyrun.runtime.steps.outcome import step_failed
from keyrun.runtime.texts import named, traceback_of, type_of
from keyrun.runtime.user_errors import has, is_user_error
from keyrun.runtime.values import Failure, FailureKind

_COMPLETE = On.COMPLETE  # looking it up takes as long as a call

NodeCall = Callable[[Coroutine[Any, Any, None], NodeTask], Awaitable[None]]
"""Awaits a call that may suspend. Another task takes the next nodes then."""


class NodeExecutor:
    """Runs nodes, and calls `end` with the end of each node as soon as the journal has it."""

    def __init__(
        self,
        context: Context,
        places: PlaceReservations,
        *,
        call: NodeCall,
        end: Callable[[Activation, NodeEnd], None],
    ) -> None:
        self._context = context
        self._branch = context.branch
        self._run = context.branch.run
        self._steps = context.branch.fork("")
        """The branch of all nodes with a step. Only their names differ."""
        self._places = places
        self._call = call
        self._end = end

    async def begin(self, activation: Activation, task: NodeTask) -> Started | None:
        """Run a node. If it returns a `Started`, call `finish` when the task has another scope."""
        run, planned, ident = self._run, activation.planned, activation.ident
        journal, step = run.journal, planned.step
        if journal.expected is not None:
            self._branch.pass_by(ident)
        if step is None:
            await self._call(self._run_workflow_code(activation), task)
            return None
        run.begun_steps += 1
        memory = journal.memories.get(ident)
        if memory is not None and memory.outcome is not None:
            await self._call(self._replay(activation, memory), task)
            return None
        if run.begun_steps > run.submission.limits.most_iterations:
            raise too_many_iterations(run, run.begun_steps, "the run called step", ident)
        passed = None
        if (
            not step.can_start_inline
            # First, because a dry run, which is always careful, has no slots.
            or (run.careful or run.is_stopped() or (memory is not None and memory.known))
            or not run.partition.slots.free
            or (planned.crowded and not self._places.reserve(activation))
        ):
            await self._call(self._attempts(activation), task)
            return None
        if step.guarded:
            passed = run.partition.host.gates.of(step).enter_nowait((run.number, step.set.name))
            if passed is None:
                await self._call(self._attempts(activation), task)
                return None
        value = await task.start(activation, passed)
        if type(value) is Started:
            return value
        self._complete(activation, value)
        return None

    async def finish(self, activation: Activation, started: Started, task: NodeTask) -> None:
        """Settle or retry an attempt that was started inline and suspended or raised an error."""
        await self._call(self._attempts(activation, started), task)

    async def _attempts(self, activation: Activation, started: Started | None = None) -> None:
        step, ident = activation.planned.step, activation.ident
        assert step is not None
        memory = self._run.journal.remember(ident, None)
        given = (activation.given,)
        if activation.planned.crowded and not self._run.is_dry_run:
            await self._places.wait(activation)
        try:
            value = await attempts(self._steps, step, ident, memory, given, {}, started)
        except StepFailed as error:
            self._fail(activation, error.failure, error)
        else:
            self._complete(activation, value)

    async def _replay(self, activation: Activation, memory: CallRecord) -> None:
        """End a node with its outcome in the journal."""
        step = activation.planned.step
        assert step is not None
        try:
            value = await replayed(self._run, step, activation.ident, memory)
        except StepFailed as error:
            self._fail(activation, error.failure, error)
        else:
            self._complete(activation, value)

    async def _run_workflow_code(self, activation: Activation) -> None:
        """Run a node that is workflow code."""
        node, run = activation.planned.node, self._run
        before = run.begun_steps
        branch = NodeBranch(self._branch, f"{activation.ident}/")
        context = Context(branch, self._context.input)
        try:
            if activation.planned.crowded and not run.is_dry_run:
                # A node that had begun before resumes in the order of the journal.
                if run.journal.is_replaying():
                    self._places.reserve(activation)
                else:
                    await self._places.wait(activation)
            given = NodeInput.of(activation.given)
            try:
                value = await node.target(context, given)
            except BaseException as error:
                from_user(error)
                raise
            end = self._left(activation, value)
        except StepFailed as error:
            self._fail(activation, error.failure, error)
        except BaseException as error:
            if has(error, Halt) or not is_user_error(error) or is_internal(error):
                raise
            failure = _failure(activation, error, run.partition.redaction)
            if not isinstance(error, ChildFailed | ChildCancelled):
                # The failure of the run names the node, too.
                error = step_failed(run, failure)
            self._fail(activation, failure, error)
        else:
            if run.begun_steps == before:
                # Otherwise a loop of nodes without steps would not count towards `max_iterations`.
                run.begun_steps += 1
            self._end(activation, end)
        finally:
            branch.close()
            del self._branch.forks[branch]

    def _left(self, activation: Activation, value: Any) -> NodeEnd:
        """Return how workflow code has ended that returned `value`."""
        node, ident, journal = activation.planned.node, activation.ident, self._run.journal
        if not isinstance(value, FailurePort):
            given = activation.given
            return NodeEnd(On.COMPLETE, *read(node, stored(node, value, given), given.output))
        left = NodeEnd(On.COMPLETE, value.name, value.output)
        if journal.left_by is not None and journal.left_by.get(ident) == value.name:
            # An earlier Keyrun let edges without a port take it, and the run has followed them.
            return left
        failed = step_failed(self._run, value.failure)
        return left._replace(
            otherwise=NodeEnd(On.FAIL, failure=value.failure, error=failed, afresh=True)
        )

    def _complete(self, activation: Activation, value: Any) -> None:
        port, output = read(activation.planned.node, value, activation.given.output)
        self._end(activation, NodeEnd(_COMPLETE, port, output))

    def _fail(self, activation: Activation, failure: Failure, error: BaseException) -> None:
        refused = failure.kind is FailureKind.CIRCUIT_OPEN
        if refused and activation.planned.node.fallback is not None:
            self._end(activation, NodeEnd(On.OPEN, None, failure.numbers, failure, error))
        else:
            self._end(activation, NodeEnd(On.FAIL, None, None, failure, error))


class NodeBranch(Branch):
    """The branch of a node that is workflow code. It begins nothing new before all outcomes of the
    journal were replayed, because the next node must not depend on steps that are still running."""

    __slots__ = ()

    def __init__(self, parent: Branch, prefix: str) -> None:
        super().__init__(parent.run, prefix, apart=True)
        self.bound = True
        self.closed = parent.closed
        parent.add_fork(self)

    async def admit(self) -> None:
        """Return when a call without an outcome in the journal may start."""
        run, journal = self.run, self.run.journal
        cut = any(scope.expires and not scope.fired for scope in journal.around(self.prefix))
        while not cut and not journal.caught_up():
            missing = await journal.turn_of(self.prefix)
            if missing is not None:
                if not run.going:
                    raise Halt
                said = f"the journal has an outcome of {missing!r} next, but no node asks for it"
                raise run.contradicted(said, missing)
            journal.advance()
        await super().admit()


def _failure(activation: Activation, error: BaseException, redaction: Redaction) -> Failure:
    return Failure(
        kind=FailureKind.WORKFLOW_ERROR,
        reason=f"the node {activation.ident!r} raised {named(error, redaction)}",
        step=activation.ident,
        error_type=type_of(error),
        traceback=traceback_of(error, redaction),
    )
