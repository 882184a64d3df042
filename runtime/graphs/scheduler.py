"""The scheduler of a graph: runs the nodes that the frontier allows, as durable as any step.

One task runs the nodes that are ready, one after the other. As soon as a node suspends, another
task takes the next nodes. So a node that does not suspend costs no task, no cancel scope and no
slot.

When a run is replayed from its journal, nodes get their outcomes in the order of the journal. No
node starts before the last outcome was delivered, so the frontier is where it was before.
"""

from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.agenda import Agenda
from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.frontier import Frontier, TooManyIterations
from keyrun.runtime.graphs.node_backpressure import PlaceReservations
from keyrun.runtime.graphs.node_execution import NodeExecutor
from keyrun.runtime.graphs.node_task import NodeTask
from keyrun.runtime.graphs.output_limit import Allowance
from keyrun.runtime.internal_errors import is_internal
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import (
    CallDone,
    CallKind,
    CallRecord,
    EntryKind,
    NodeEnded,
)
from keyrun.runtime.run.expected import Expected
from keyrun.runtime.steps.invocation import Started
from keyrun.runtime.user_errors import is_cancellation, is_fatal
from keyrun.runtime.values import Failure, FailureKind, ItemCounts

if TYPE_CHECKING:
    from keyrun.runtime.graphs.graph import Graph


class GraphScheduler:
    """Runs a graph in one pass of its run."""

    def __init__(self, graph: "Graph", context: Context, input_: Any) -> None:
        branch = context.branch
        self._graph = graph
        self._context = context
        self._run = branch.run
        self._run.allowance = Allowance(graph.max_output, graph.max_run_output)
        self._journal = branch.run.journal
        self._branch = branch
        self._run.graph = self
        self._frontier = Frontier(
            graph.plan,
            input_,
            Agenda(
                graph.max_concurrency,
                waves=graph.schedule == "waves",
                staged=self._run.staged,
            ),
        )
        self._agenda = self._frontier.agenda
        self._places = PlaceReservations(self._run, self._frontier)
        self._executor = NodeExecutor(context, self._places, call=self._call, end=self._end)
        self._tasks = 1
        """The number of node tasks."""
        self._is_catching_up = False
        """Whether a task waits until all outcomes were given back. It takes the next nodes then."""
        self._raised: BaseException | None = None
        self._stopped = False
        self._clean = copy_context()

    def node_counts(self) -> dict[str, int]:
        """Return the number of nodes in each state."""
        # Only `progress` needs this module.
        from keyrun.runtime.graphs.view import count_states, node_states

        run = self._run
        ended = run.status.state.terminal
        states = node_states(self._frontier, run.current, run.journal, ended=ended)
        return {str(state): count for state, count in count_states(states.values()).items()}

    def item_counts(self) -> dict[str, ItemCounts]:
        """Return the items of each map that the run has reached, and is not in another."""
        from keyrun.runtime.graphs.view import item_counts

        return item_counts(self._frontier)

    async def run(self) -> None:
        """Return when no node can run any more. Raise the first failure that no edge handled."""
        run, frontier = self._run, self._frontier
        self._branch.check()
        if run.pending:
            run.partition.suspension.callback = None
        try:
            async with trio.open_nursery() as self._nursery:
                await self._serve()
        except* trio.Cancelled:
            # The failure of a node is in the journal, so it comes before any other cancellation.
            if self._raised is None and not self._stopped:
                raise
        finally:
            self._places.clear()
            self._branch.forks.clear()
        if self._raised is not None:
            raise self._raised
        if frontier.failed:
            self._decide()
            _, end = frontier.failed[0]
            assert end.error is not None
            raise end.error

    @property
    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the nodes that have completed."""
        return self._frontier.outputs

    async def _serve(self) -> None:
        """Run nodes in the current task, and notice when it suspends."""
        await self._run.partition.suspension.carry(self._run_nodes())

    async def _run_nodes(self) -> None:
        """Run ready nodes until there is none left, or another task takes them."""
        task = NodeTask(self._run, self._relieve)
        try:
            while await self._take(task):
                pass
        except BaseException as error:
            if is_fatal(error):
                raise
            if is_cancellation(error):
                if not self._stopped:
                    raise
            elif self._raised is None:
                self._raised = self._run.crash(error) if is_internal(error) else error
                self._note_verdict()
                self._stop()
        finally:
            self._tasks -= 1
            if self._tasks:  # after the last task, the branch that started the graph resumes
                self._journal.tasks -= 1
                self._journal.check_stuck()
                if self._run.waiting_branches and not self._stopped:
                    # All that is left may wait.
                    self._run.partition.services.eviction.consider(self._run)

    async def _take(self, task: NodeTask) -> bool:
        """Run nodes in one cancel scope until one of them used it. Return whether there may be more
        nodes."""
        executor, journal = self._executor, self._journal
        started: Started | None = None
        cancellable: Activation | None = None
        with trio.CancelScope() as task.scope:
            while started is None and cancellable is None and not self._stopped:
                activation = self._next()
                if activation is None:
                    if not self._agenda.picked or self._is_catching_up:
                        return False
                    await self._catch_up()
                    continue
                gate = activation.gate
                if gate is not None and not gate.durable and not journal.is_replaying():
                    await gate.wait()
                    await trio.lowlevel.checkpoint_if_cancelled()
                if activation.owner.cancels:
                    cancellable = activation
                else:
                    started = await executor.begin(activation, task)
        if started is not None:
            assert activation is not None
            await executor.finish(activation, started, task)
        if cancellable is not None:
            await self._run_cancellable(cancellable, task)
        return not self._stopped

    async def _run_cancellable(self, activation: Activation, task: NodeTask) -> None:
        """Run a node that a map may cut off, in a cancel scope of its own."""
        if activation.is_dropped:
            return
        with trio.CancelScope() as activation.scope:
            with trio.CancelScope() as task.scope:
                started = await self._executor.begin(activation, task)
            if started is not None:
                await self._executor.finish(activation, started, task)

    def _relieve(self, counted: bool) -> None:
        """Start another node task if a node is ready, because the current task suspends."""
        if self._agenda.picked and not self._stopped:
            self._tasks += 1
            if not counted:
                self._journal.tasks += 1
            # Not in the context of the step that suspends.
            self._clean.run(self._nursery.start_soon, self._serve)
        elif counted:
            self._journal.tasks -= 1

    async def _call(self, call: Coroutine[Any, Any, None], task: NodeTask) -> None:
        """Await a call that may suspend. While a node is ready, the task that would take it counts
        from the start. Otherwise the journal could find that no task can continue."""
        if self._agenda.picked:
            self._journal.tasks += 1
            task.counted = True
        try:
            await task.call(call)
        finally:
            if task.counted:
                self._journal.tasks -= 1
                task.counted = False

    def _next(self) -> Activation | None:
        """Return the node to begin next. While the run is replayed, this is the node with the next
        outcome in the journal, or a node whose code could ask for it."""
        picked = self._agenda.picked
        if not self._journal.is_replaying():
            expected = self._journal.expected
            if expected is not None and expected.left:
                return self._next_expected(expected)
            return picked.popleft() if picked else None
        upcoming, memories = self._journal.upcoming(), self._journal.memories
        found = known = None
        for activation in picked:
            if activation.ident == upcoming:
                found = activation
                break
            if activation.planned.step is None:
                # The next outcome may be of a call in this workflow code.
                found = activation
            elif known is None and _is_known(memories.get(activation.ident)):
                known = activation
        if found is None and upcoming is not None:
            recall = self._agenda.recall
            found = recall(upcoming.partition("/")[0]) or known or recall("")
        else:
            found = found or known
        if found is not None:
            picked.remove(found)
        return found

    def _next_expected(self, expected: Expected) -> Activation | None:
        """Return the node to begin next while the journal has nodes that have begun: one of them,
        or workflow code, which may lead to one."""
        picked = self._agenda.picked
        for activation in picked:
            if activation.planned.step is None or expected.has("", activation.ident):
                picked.remove(activation)
                return activation
        for ident in expected.nodes:
            found = self._agenda.recall(ident)
            if found is not None:
                picked.remove(found)
                return found
        return None

    async def _catch_up(self) -> None:
        """Return when all outcomes were replayed, and all calls that had begun were asked for."""
        journal = self._journal
        self._is_catching_up = True
        try:
            missing = await journal.turn_of("graph()")
        finally:
            self._is_catching_up = False
        expected = journal.expected
        if missing is None and expected is not None:
            # Workflow code may have received the last outcome while this task waited for that.
            found = self._next_expected(expected) if expected.left else None
            if found is not None:
                self._agenda.picked.appendleft(found)
                return
            missing = await journal.all_asked()
        if missing is not None:
            if not self._run.going:
                raise Halt
            raise self._branch.contradicts(missing, None)
        self._journal.advance()

    def _end(self, activation: Activation, end: NodeEnd) -> None:
        if self._stopped or activation.is_dropped:
            return
        self._agenda.staged = self._run.staged
        try:
            end = activation.owner.end(activation, end)
            if activation.planned.step is None and not self._journal.is_replaying():
                self._note(activation, end, sorted(activation.owner.fired))
        except TooManyIterations as error:
            limit = Failure(kind=FailureKind.ITERATION_LIMIT, reason=str(error))
            raise self._run.halt(limit) from None
        if self._agenda.dropped:
            self._cut_off(self._agenda.take_dropped())
        self._places.review()
        if self._graph.fail_fast and self._frontier.failed:
            self._stop()

    def _note_verdict(self) -> None:
        """Record which node ended the run with `ctx.fail`."""
        verdict = self._run.decision
        if not isinstance(verdict, Failure) or verdict.kind is not FailureKind.VERDICT:
            return
        for activation in self._frontier.all_active():
            if activation.ident == verdict.step:
                self._note(activation, NodeEnd(On.FAIL, failure=verdict), [])

    def _note(self, activation: Activation, end: NodeEnd, fired: list[int]) -> None:
        """Record the end of workflow code for the views of the run, because its other journal
        entries do not have it. `fired` has the edges that the run took."""
        if not self._journal.note_node_ended(activation.ident):
            return
        run, failure = self._run, end.failure
        brief = failure and attrs.evolve(failure, traceback=None, cause=None)
        at = run.partition.wall()
        run.write(NodeEnded(activation.ident, at, str(end.on), end.port, fired, brief))
        if end.afresh and failure is not None and not run.is_dry_run:
            log(run, "step_failed", failure.reason, failure)
            if run.partition.feed is not None:
                emitter.step_failed(run.partition.feed, run, failure)

    def _cut_off(self, dropped: list[Activation]) -> None:
        """Cancel nodes of a map that has failed. Their calls are not asked for again."""
        self._note_cancelled([each for each in dropped if each.scope is not None])
        run = self._run
        labels = {wait.ident: wait.label for wait in run.waits}
        for activation in dropped:
            for ident in self._journal.cut_off(activation.ident):
                # In one commit with the failure, so that a replay keeps no signal for the wait.
                if self._is_live():
                    run.note(ident, "wait_cancelled", labels.get(ident, ""))
            if activation.scope is not None:
                activation.scope.cancel()
        if run.inbox is not None:
            run.inbox.match(self._journal)

    def _is_live(self) -> bool:
        run = self._run
        return run.going and run.decision is None and not self._journal.is_replaying()

    def _note_cancelled(self, activations: list[Activation]) -> None:
        """Record that nodes were cancelled while they waited. A step that runs records it itself
        when it has stopped."""
        run, journal = self._run, self._journal
        if self._is_live():
            for ident in [each.ident for each in activations]:
                if ident not in run.current and not _is_known(journal.memories.get(ident)):
                    run.note(ident, "step_cancelled", "while it waited")

    def _stop(self) -> None:
        """Begin no more nodes, and cancel the active ones. The journal records that they were
        cancelled."""
        self._stopped = True
        for branch in self._branch.forks:
            branch.close()
        self._note_cancelled(self._frontier.all_active())
        # No code will ask for outcomes that come after this in the journal.
        self._journal.abandon("")
        self._nursery.cancel_scope.cancel()

    def _decide(self) -> None:
        """Record the failures that no edge handled. A redrive retries these nodes."""
        run, journal = self._run, self._journal
        memory = journal.memory("graph()")
        if memory.outcome is not None:
            journal.deliver(memory)
            return
        memory.call = CallKind.GRAPH
        memory.payload = [_to_redrive(*failed) for failed in self._frontier.failed]
        at = run.partition.wall()
        run.write(CallDone("graph()", at, CallKind.GRAPH, None, 1, None, memory.payload))
        journal.settled("graph()", memory, EntryKind.DONE)


def _to_redrive(activation: Activation, end: NodeEnd) -> str:
    """Return what a redrive runs again after a failure: a node, or all calls in a node. Of a map,
    it is what failed in the body."""
    while end.inside is not None:
        activation, end = end.inside
    return f"{activation.ident}/" if end.afresh else activation.ident


def _is_known(memory: CallRecord | None) -> bool:
    return memory is not None and memory.outcome is not None
