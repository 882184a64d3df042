"""The wiring of a partition: makes its services and gives each the few others that it calls."""

from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import trio

from keyrun.actors import ActorSystem, Supervision
from keyrun.runtime.children.child_runs import Children
from keyrun.runtime.children.cycles import Cycles
from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.entities.call_waits import CallWaits
from keyrun.runtime.entities.dispatcher import Dispatcher
from keyrun.runtime.entities.requests import AnswerStore
from keyrun.runtime.events.feed import Feed
from keyrun.runtime.host.host import Host
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.internal_errors import store_failure
from keyrun.runtime.limits import Limits
from keyrun.runtime.metrics import Metrics, WorkflowMetrics
from keyrun.runtime.operations.control import RunControl
from keyrun.runtime.operations.damaged_runs import DamagedRuns
from keyrun.runtime.operations.performed import PerformedOperations
from keyrun.runtime.operations.redrive import Redrive
from keyrun.runtime.queue.admission import Admission
from keyrun.runtime.queue.delays import Delays
from keyrun.runtime.queue.delivery import HookDelivery
from keyrun.runtime.queue.hook import Hook, TerminalHook
from keyrun.runtime.queue.instance_limits import Instances
from keyrun.runtime.queue.key_actor import KeyActor
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.queue.key_queues import KeyQueues
from keyrun.runtime.queue.outbox import Outbox
from keyrun.runtime.records.submission import StatusRecord, Summary
from keyrun.runtime.recovery.retention import Retention, Sweeper
from keyrun.runtime.recovery.supervision import KeySupervisor
from keyrun.runtime.run.partition_state import LeasedState, PartitionState
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.services import RunServices
from keyrun.runtime.runs import RunTable
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.values import State
from keyrun.runtime.waiting.eviction import Evictor
from keyrun.runtime.waiting.signals import Signals
from keyrun.runtime.waiting.timers import Timers
from keyrun.storage import Store
from keyrun.storage.payload import PayloadCodec

if TYPE_CHECKING:
    from keyrun.runtime.groups.service import Groups
    from keyrun.runtime.inspect.measure import Measured
    from keyrun.runtime.run.running_step import RunningStep
    from keyrun.runtime.schedules.service import Schedules


class Partition:
    """The services of a partition."""

    def __init__(
        self,
        store: Store,
        *,
        host: Host,
        registry: Registry,
        namespace: str,
        limits: Limits,
        hook: Hook | None,
        hook_timeout: float,
        retention: Retention,
        codec: PayloadCodec,
        supervision: Supervision,
        entities: Iterable[type] = (),
        tuning: Tuning,
        max_pending: int,
        max_pending_per_key: int,
        backpressure_timeout: float,
        evict_after: float,
    ) -> None:
        kind = partial(LeasedState, resume=self._resume) if store.leased else PartitionState
        state: PartitionState = kind(
            store,
            host=host,
            namespace=namespace,
            registry=registry,
            limits=limits,
            codec=codec,
            metrics=Metrics(tuning.metric_names) if tuning.metric_names else None,
        )
        self.state = state
        self.tuning = tuning
        self.retention = retention
        self.runs = RunTable(state.ledger)
        self.queues = KeyQueues(
            state,
            self.runs,
            tuning,
            max_pending=max_pending,
            max_pending_per_key=max_pending_per_key,
            backpressure_timeout=backpressure_timeout,
        )
        self.backlog = self.queues.backlog
        self.damaged = DamagedRuns(state, self.runs, self.queues)
        self.queues.set_aside = self.damaged.set_aside
        self.supervisor = KeySupervisor(state, self.runs, self.queues, supervision)
        self.statuses = StatusReader(
            state.ledger,
            codec,
            registry,
            live=self.runs.live,
            quarantined=self.supervisor.quarantined,
        )
        self.outbox = Outbox(state.ledger, converted_at_once=tuning.outbox_conversion)
        self.sweeper = Sweeper(state, self.runs, self.outbox, self.damaged, retention)
        self.operations = PerformedOperations(
            state, keep_seconds=retention.age, keep_count=retention.count
        )
        self.events = Feed(host.subscribers, state.commits, host.wall, self._listen)
        host.subscribers.attach(self.events)
        self.delivery: HookDelivery | None = None
        """Calls the terminal hook, if there is one."""
        if hook is not None:
            self.delivery = HookDelivery(
                self.outbox,
                TerminalHook(hook, hook_timeout, tuning.hook_calls, host.outside, host.redaction),
                namespace=state.ledger.prefix,
                decode_result=self.statuses.decode_result,
                redaction=host.redaction,
                fail=self.fail,
                trusted=state.trusted,
                tuning=tuning,
                metrics=state.metrics,
                wall=host.wall,
            )
        self.delays = Delays(state, self.runs, self.queues)
        limited = [each for each in registry if each.instances is not None]
        self.instances = Instances(state, limited) if limited else None
        self.admission = Admission(state, self.queues, self.delays, self.instances)
        self.timers = Timers(state, self.runs, window=tuning.timer_window)
        self.eviction = Evictor(
            state,
            self.runs,
            self.queues,
            evict_after=evict_after,
            max_in_memory=tuning.waiting_in_memory,
            evicted=self.timers.add,
        )
        self.timers.wake_run = self.eviction.wake
        self.signals = Signals(state, self.runs, self.queues, self.eviction)
        self.cycles = Cycles(state, self.runs)
        self.children = Children(
            state, self.runs, signals=self.signals, eviction=self.eviction, cycles=self.cycles
        )
        self.actors: ActorSystem[str, KeyQueue, None] = ActorSystem(
            lambda key: KeyActor(self.queues, self.dispatcher, self.supervisor),
            supervision=supervision,
            pass_size=host.pass_size,
            on_quarantine=self.supervisor.quarantine,
            idle_timeout=60.0,
            # A queue that was not served to its end is served again at the next open.
            on_dead_letter=lambda letter: None,
        )
        self.dispatcher = Dispatcher(
            state,
            entities,
            actors=self.actors,
            queues=self.queues,
            eviction=self.eviction,
            waits=CallWaits(state.slots, self.cycles.chain),
            answers=AnswerStore(state, keep_seconds=retention.age, keep_count=retention.count),
            tuning=tuning,
        )
        self.cycles.has_children = lambda: self.children.used
        self.cycles.called_by = self.dispatcher.waits.keys
        self.control = RunControl(
            state,
            self.runs,
            self.queues,
            self.eviction,
            entities_may_run=self.dispatcher.wake_queues,
        )
        self.children.admission = self.admission
        self.children.control = self.control
        self.redrive = Redrive(
            state,
            self.runs,
            self.queues,
            control=self.control,
            eviction=self.eviction,
            damaged=self.damaged,
            signals=self.signals,
            children=self.children,
            outbox=self.outbox,
            instances=self.instances,
            supervisor=self.supervisor,
            retention=self.sweeper,
            groups=lambda: self.groups,
            status=self.statuses.status,
        )
        self.sweeper.redrive = self.redrive
        self.queues.wake_actor = self.actors.tell_nowait
        self.supervisor.actors = self.actors
        state.suspension = self.actors.suspension
        state.wait_slot = self.actors.wait_slot
        state.actor_scope = self.actors.scope
        state.renew_scope = self.actors.renew_scope
        self.scope = trio.CancelScope(shield=True)
        """Around everything that works for the runs. The partition cancels it itself, also when the
        block is cancelled: a cancelled block drains like any other."""
        self.block = trio.CancelScope()
        """Around the user's block, and then around the drain."""
        self.finished = trio.Event()
        """Set when nothing works for the runs any more."""
        state.services = RunServices(
            eviction=self.eviction,
            signals=self.signals,
            children=self.children,
            outbox=self.outbox,
            delays=self.delays,
            instances=self.instances,
            status_of=self.statuses.status_of,
            summarize=_summarize,
            fail=self.fail,
            run_ended=self.run_ended,
            run_quarantined=self.runs.report_end,
        )

    @cached_property
    def groups(self) -> "Groups":
        """Return the groups. They are imported for the first operation on a group."""
        from keyrun.runtime.groups.service import Groups

        return Groups(
            self.state,
            runs=self.runs,
            admission=self.admission,
            backlog=self.backlog,
            statuses=self.statuses,
            cancel=self.control.cancel,
            stage_redrive=self.redrive.stage_redrive,
            page=self.tuning.group_page,
        )

    @cached_property
    def schedules(self) -> "Schedules":
        """Return the schedules. They are imported for the first operation on a schedule."""
        from keyrun.runtime.schedules.service import Schedules

        return Schedules(
            self.state,
            runs=self.runs,
            admission=self.admission,
            state_of=self.statuses.state,
            keep_seconds=self.retention.age,
        )

    def measured(self) -> "Measured":
        """Return what monitoring measures."""
        from keyrun.runtime.inspect.measure import Measured

        return Measured(
            state=self.state,
            runs=self.runs,
            backlog=self.backlog,
            outbox=self.outbox,
            quarantined_keys=self.supervisor.quarantined,
        )

    def _listen(self, feed: Feed | None) -> None:
        self.state.feed = feed

    def close(self) -> None:
        """Report to everything that waits that no more runs will end."""
        self.state.closed = True
        self.state.host.subscribers.detach(self.events)
        self.runs.close()
        self.dispatcher.close()
        self.operations.close()

    def _resume(self) -> None:
        """Let everything continue that was held because ownership was not certain."""
        for run in self.runs.all_live():
            run.resume()
        self.dispatcher.wake_queues()

    def attempts(self) -> list["RunningStep"]:
        """Return the attempts of steps that have suspended."""
        return [current for run in self.runs.all_live() for current in run.current.values()]

    def run_ended(self, run: Run) -> None:
        """Report the end of a run, which is durable."""
        if self.state.tracer is not None:
            self.state.tracer.run_ended(run)
        run.submission.at_hand = False
        if run.metrics is not None:
            _count_end(run.metrics, run.status)
        self.runs.end(run)
        self.sweeper.run_ended()
        if self.delivery is not None:
            self.delivery.add(run.key)

    def fail(self, error: Exception) -> None:
        """Stop everything: the store failed, or Keyrun has a bug. The first error counts."""
        if self.state.failure is None:
            self.state.failure = store_failure(error) or error
            self.state.stopped = True
            self.scope.cancel()
            self.block.cancel()
            for run in self.runs.all_live():
                run.resume()


_SUCCEEDED = State.SUCCEEDED  # looking it up takes as long as a call


def _count_end(metrics: WorkflowMetrics, status: StatusRecord) -> None:
    """Count the end of a run."""
    if status.state is _SUCCEEDED:
        metrics.succeeded += 1
    else:
        failed = status.state is State.FAILED and status.failure is not None
        kind = status.failure.kind._value_ if failed and status.failure else ""
        metrics.ended[status.state._value_, kind] += 1
    if status.started_at is not None and status.ended_at is not None:
        seconds = status.ended_at - status.started_at
        metrics.seconds.add(seconds if seconds > 0 else 0.0)


def _summarize(run: Run) -> Summary | None:
    # Imported by the first run that needs it: most programs never do.
    from keyrun.runtime.inspect.progress import summarize

    return summarize(run)
