"""The engine: what all runs of a runtime share, and how they are found."""

from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING

import trio

from keyrun.actors import ActorSystem, Supervision
from keyrun.runtime.children.child_runs import Children
from keyrun.runtime.children.cycles import chain
from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.entities.call_waits import CallWaits
from keyrun.runtime.entities.dispatcher import Dispatcher
from keyrun.runtime.entities.requests import AnswerStore
from keyrun.runtime.events.feed import Feed
from keyrun.runtime.host.host import Host
from keyrun.runtime.inspect.statuses import Reading
from keyrun.runtime.limits import Limits
from keyrun.runtime.operations.control import Control
from keyrun.runtime.operations.redrive import stage_redrive
from keyrun.runtime.queue.admission import Admission
from keyrun.runtime.queue.backpressure import Backlog
from keyrun.runtime.queue.completed_runs import CompletedRuns
from keyrun.runtime.queue.concurrency_gate import ConcurrencyGate
from keyrun.runtime.queue.delays import Delays
from keyrun.runtime.queue.delivery import AT_ONCE, Delivery
from keyrun.runtime.queue.hook import Hook, TerminalHook
from keyrun.runtime.queue.instance_limits import Instances
from keyrun.runtime.queue.key_actor import KeyActor
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.runtime.queue.outbox import Outbox
from keyrun.runtime.queue.pool import QueuePool
from keyrun.runtime.records.submission import Submission, Summary
from keyrun.runtime.recovery.bugs import store_failure
from keyrun.runtime.recovery.retention import Retention, Sweeper
from keyrun.runtime.recovery.supervision import Crashes
from keyrun.runtime.run.partition_state import PartitionState
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.services import RunServices
from keyrun.runtime.runs import RunTable
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.waiting.eviction import Evictor
from keyrun.runtime.waiting.signals import Signals
from keyrun.runtime.waiting.timers import Timers
from keyrun.storage import Store
from keyrun.storage.payload import PayloadCodec

if TYPE_CHECKING:
    from keyrun.runtime.groups.service import Groups
    from keyrun.runtime.schedules.service import Schedules


class Partition(PartitionState):
    """The services of a partition."""

    def __init__(
        self,
        store: Store,
        *,
        host: Host,
        registry: Registry,
        namespace: str,
        limits: Limits,
        max_pending: int,
        max_pending_per_key: int,
        backpressure_timeout: float,
        hook: Hook | None,
        hook_timeout: float,
        retention: Retention,
        codec: PayloadCodec,
        supervision: Supervision,
        evict_after: float,
        entities: Iterable[type] = (),
        tuning: Tuning,
    ) -> None:
        super().__init__(
            store,
            host=host,
            namespace=namespace,
            registry=registry,
            limits=limits,
            codec=codec,
        )
        self.crashes = Crashes(self, supervision)
        self.runs = RunTable(self.ledger)
        self.reading = Reading(
            self.ledger,
            codec,
            registry,
            live=self.runs.live,
            quarantined=self.crashes.quarantined,
        )
        self.retention = retention
        self._tuning = tuning
        self.sweeper = Sweeper(self, retention)
        self.salvaging = trio.Lock()
        self.queues: dict[str, KeyQueue] = {}
        self._spare = QueuePool()
        self._endings = CompletedRuns()
        self.asleep: dict[str, tuple[int, int]] = {}
        """Keys known by name only since a run sleeps that holds them: its number, how many wait."""
        self.events = Feed(host.subscribers, self.commits, host.wall, self._listen)
        host.subscribers.attach(self.events)
        self.concurrency_gate = ConcurrencyGate(self, host.slots.total)
        self.backlog = Backlog(
            self.queues,
            self.concurrency_gate,
            self.asleep,
            max_pending,
            max_pending_per_key,
            backpressure_timeout,
            lambda: self.feed,
        )
        self.outbox = Outbox(self.ledger)
        self.delivery: Delivery | None = None
        """Calls the terminal hook, if there is one."""
        if hook is not None:
            self.delivery = Delivery(
                self.outbox,
                TerminalHook(hook, hook_timeout, AT_ONCE),
                namespace=self.ledger.prefix,
                decode_result=self.reading.decode_result,
                fail=self.fail,
            )
        self.delays = Delays(self)
        self.admission = Admission(self)
        limited = [each for each in registry if each.instances is not None]
        self.instances = Instances(self, limited) if limited else None
        self.eviction = Evictor(self, evict_after)
        self.timers = Timers(self)
        self.signals = Signals(self)
        self.children = Children(self)
        self.control = Control(self)
        self.actors: ActorSystem[str, KeyQueue, None] = ActorSystem(
            lambda key: KeyActor(),
            supervision=supervision,
            on_quarantine=self.crashes.quarantine,
            idle_timeout=60.0,
            # A line that was not served to its end is served again at the next open.
            on_dead_letter=lambda letter: None,
        )
        self.dispatcher = Dispatcher(
            self,
            entities,
            actors=self.actors,
            backlog=self.backlog,
            queues=self.queues,
            queue_of=self.queue,
            eviction=self.eviction,
            waits=CallWaits(self.slots, lambda key, target: chain(self, key, target)),
            answers=AnswerStore(self, keep_seconds=retention.age, keep_count=retention.count),
            tuning=tuning,
        )
        self.suspension = self.actors.suspension
        self.seat = self.actors.seat
        self.actor_scope = self.actors.scope
        self.scope = trio.CancelScope(shield=True)
        """Around all that works for the runs. It ends when the engine says so, also when the block
        is cancelled: that is drained like any other."""
        self.block = trio.CancelScope()
        """Around the user's block, and then around the drain."""
        self.finished = trio.Event()
        """Set when nothing works for the runs any more."""
        self.services = RunServices(
            eviction=self.eviction,
            signals=self.signals,
            children=self.children,
            outbox=self.outbox,
            delays=self.delays,
            instances=self.instances,
            status_of=self.reading.status_of,
            summarize=_summarize,
            fail=self.fail,
            run_ended=self.run_ended,
            run_quarantined=self.runs.report_end,
        )

    @cached_property
    def groups(self) -> "Groups":
        """The groups. Imported for the first operation on a group."""
        from keyrun.runtime.groups.service import Groups

        return Groups(
            self,
            runs=self.runs,
            admission=self.admission,
            backlog=self.backlog,
            statuses=self.reading,
            cancel=self.control.cancel,
            stage_redrive=partial(stage_redrive, self),
            page=self._tuning.group_page,
        )

    @cached_property
    def schedules(self) -> "Schedules":
        """The schedules. Imported for the first operation on a schedule."""
        from keyrun.runtime.schedules.service import Schedules

        return Schedules(
            self,
            runs=self.runs,
            admission=self.admission,
            state_of=self.reading.state,
            keep_seconds=self.retention.age,
        )

    def _listen(self, feed: Feed | None) -> None:
        self.feed = feed

    def queue(self, key: str) -> KeyQueue:
        """The line of a key, made if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            asleep = self.asleep.pop(key, None)
            dormant = self.concurrency_gate.dormant.pop(key, 0)
            queue = self._spare.pop(key, None)
            known = self.recovered and not dormant and asleep is None
            if queue is None or not known:
                queue = KeyQueue(self, key, known=known)
                if self._endings:
                    queue.group = self._endings.pop(key, None)
            self.queues[key] = queue
            if dormant:
                queue.revive(dormant)
            if asleep is not None:
                queue.rouse(*asleep)
        return queue

    def sleeps(self, key: str, number: int) -> None:
        """A run was found that sleeps and holds its key."""
        queue = self.queues.get(key)
        if queue is None and key not in self.concurrency_gate.dormant:
            # It may have been read before, and runs that came since be counted.
            self.asleep[key] = number, self.asleep.get(key, (0, 0))[1]
        elif self.runs.live(number) is None:
            self.queue(key).sleeper = number

    def enter(self, key: str) -> None:
        """One more run of a key waits to be started."""
        queue = self.queues.get(key)
        if queue is None:
            if key in self.concurrency_gate.dormant:
                self.concurrency_gate.dormant[key] += 1
                self.backlog.pending += 1
                return
            if key in self.asleep:
                sleeper, pending = self.asleep[key]
                self.asleep[key] = sleeper, pending + 1
                self.backlog.pending += 1
                return
            queue = self.queue(key)
        self.backlog.enter(queue)

    def admitted(self, submission: Submission) -> None:
        """A run has its place, durably. A key that is known by name only stays so."""
        queue = self.queues.get(submission.key)
        if queue is None and submission.key not in self.concurrency_gate.dormant:
            if submission.key in self.asleep:
                return
            queue = self.queue(submission.key)
        if queue is not None:
            queue.admit(submission)

    def forget_line(self, queue: KeyQueue) -> None:
        """A line with nothing in it costs nothing."""
        # A run at rest may have woken a line that was forgotten before.
        kept = queue.pending or queue.paused or queue.sleeper is not None
        if self.queues.get(queue.key) is queue and not kept:
            del self.queues[queue.key]
            if self.recovered and queue.reusable():
                self._spare.keep(queue)
            elif queue.group is not None and not queue.group.durable:
                self._endings.keep(queue.key, queue.group)
            if queue.entering:
                queue.entered()

    def close(self) -> None:
        """Report to everything that waits that no more runs will end."""
        self.closed = True
        self.host.subscribers.detach(self.events)
        self.runs.close()
        self.dispatcher.close()

    def run_ended(self, run: Run) -> None:
        """Report the end of a run, which is durable."""
        run.submission.at_hand = False
        self.runs.remove(run)
        self.sweeper.run_ended()
        self.runs.report_end(run.number, run)
        if self.delivery is not None:
            self.delivery.add(run.key)

    def fail(self, error: Exception) -> None:
        """Stop everything: the store failed, or Keyrun has a bug. The first error counts."""
        if self.failure is None:
            self.failure = store_failure(error) or error
            self.stopped = True
            self.scope.cancel()
            self.block.cancel()
            for run in self.runs.all_live():
                run.resume()


def _summarize(run: Run) -> Summary | None:
    # Imported by the first run that needs it: most programs never do.
    from keyrun.runtime.inspect.progress import summarize

    return summarize(run)
