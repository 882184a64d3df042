"""The state of a partition: what its runs and its services share.

A partition is a share of the keys with one store, one sequence of admission numbers, and flags that
say whether its runs may continue. Services receive this object and the few other services that they
call. It knows none of them, except for those that a run itself calls (`RunServices`).
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.host.callers import on_trio, wrong_caller
from keyrun.runtime.host.wall_clock import TOLERANCE
from keyrun.runtime.logger import logger
from keyrun.runtime.metrics import Metrics
from keyrun.runtime.records.counter import stored_clock, stored_counter, stored_epoch
from keyrun.runtime.records.run_counts import RunCounts
from keyrun.runtime.records.tables import Ledger, sealed
from keyrun.storage import OwnershipUncertain, Store, StoreClosed

if TYPE_CHECKING:
    from keyrun.actors.pool import Suspension, WorkerSlot
    from keyrun.runtime.definitions.workflow import Registry
    from keyrun.runtime.events.feed import Feed
    from keyrun.runtime.host.host import Host
    from keyrun.runtime.limits import Limits
    from keyrun.runtime.records.operation import Write
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.run.performing import Performing
    from keyrun.runtime.run.services import RunServices
    from keyrun.storage.group import Group
    from keyrun.storage.payload import PayloadCodec

RESERVED = 1000
"""Admission numbers that one stored counter reserves. A crash leaves at most as many unused."""


class PartitionState:
    """The store, the clock, the numbers and the flags of one partition."""

    services: "RunServices"
    """The services that a run calls. The wiring sets them."""
    suspension: "Suspension"
    """Calls back when the current actor first suspends."""
    wait_slot: "Callable[[], WorkerSlot]"
    """Returns the wait slot of the current actor, which has its cancel scope."""
    renew_scope: Callable[[], None]
    """Gives the next actor another cancel scope, because this one was cancelled."""
    actor_scope: "Callable[[], trio.CancelScope]"
    """Returns the cancel scope of the current actor."""
    start: Callable[[Callable[[], Awaitable[None]]], None]
    """Starts a background task that lives as long as the partition is open."""

    def __init__(
        self,
        store: Store,
        *,
        host: "Host",
        namespace: str,
        registry: "Registry",
        limits: "Limits",
        codec: "PayloadCodec",
        metrics: Metrics | None = None,
    ) -> None:
        self.host = host
        self.store = store
        self.commits = store.group_commit
        self.registry = registry
        self.ledger = Ledger(store.namespace(namespace))
        self.counts = RunCounts(self.ledger)
        self.limits = limits
        self.codec = codec
        self.metrics = metrics
        """The counters for monitoring; None if nothing is counted."""
        # Every step asks for these: an attribute of the host would be one more look-up each.
        self.wall = host.wall
        self.steady = host.steady
        self.slots = host.slots
        self.tracer = host.tracer
        self.redaction = host.redaction
        self.feed: Feed | None = None
        """Receives events; None while there is no subscriber."""
        self.failure: Exception | None = None
        self.draining = False
        self.closed = False
        self.paused = False
        self.stopped = False
        """Whether nothing that has effects may begin: the partition is paused, drains or has
        failed. In a `LeasedState` also while it is not certain that this process owns the store."""
        self.has_key_state = True
        """False while no key of the partition has stored state, so that none needs to be read."""
        self.has_memos = True
        """False while no step has a stored memo, so that none needs to be read."""
        self.operator = False
        """Whether the partition is open to act on its runs, and drives none: see
        `keyrun.runtime.operator`."""
        self.unclean = False
        """Whether the last owner of the store was killed."""
        self.counted = trio.Event()
        """Set when all runs that the store had at the open are counted and their keys awake."""
        self.recovered = False
        """Whether `counted` is set."""
        self.set_back = 0.0
        """Seconds by which the wall clock was set back since an earlier process had the store, as
        far as is known."""
        self.epoch = 0
        """The number of this owner. It is greater than the number of every owner before."""
        self.next_number = 1
        self.opened_at = 1
        """The first admission number that was free when the store was opened."""
        self._reserved = 0
        self.performing: dict[trio.lowlevel.Task, Performing] = {}
        """The operations from outside that are under way, by the task that performs each."""

    def take_number(self) -> int:
        """Return the next admission number. The counter is staged with the records that use it."""
        number = self.next_number
        self.next_number = number + 1
        if self.next_number >= self._reserved:
            reserved = self.next_number + RESERVED
            key, group = self.ledger.name("next"), self.store.open_group()
            group.put("counter", key, sealed("counter", key, reserved))
            group.when_dropped(self._reserve_again)
            self._reserved = reserved
        return number

    def _reserve_again(self) -> None:
        """Stage the counter again with the next number, because it was not staged."""
        self._reserved = 0

    def together(self) -> "StagedTogether":
        """Return a block that stages all of its records, or none if it raises: `with
        partition.together() as group`. Nothing may be awaited in the block. Records that belong
        together are staged so, because an internal error can end the pass between any two of
        them."""
        return StagedTogether(self.commits.open_group(), self.counts)

    def applied(self, write: "Write", answer: object, about: "Submission | None" = None) -> None:
        """Stage the records of the operation that this task performs, if it is this write. If this
        write is a part of the operation, stage that the operation is about the run. Call this in
        the block that stages the write, with the answer of the operation and the run that it is
        about."""
        performing = self._performing()
        if performing is None:
            return
        if performing.operation.write is write:
            performing.stage(self.commits.open_group(), answer, about)
        elif about is not None:
            performing.mention(self.commits.open_group(), about)

    def caller(self) -> str | None:
        """Return who makes the operation that this task performs. None if it performs none."""
        performing = self._performing()
        return None if performing is None else performing.operation.who

    def _performing(self) -> "Performing | None":
        """Return the operation that this task performs, itself or for a task that waits for it."""
        if not self.performing:
            return None
        task = trio.lowlevel.current_task()
        found = self.performing.get(task)
        while found is None:
            nursery = task.parent_nursery
            if nursery is None:
                return None
            task = nursery.parent_task
            found = self.performing.get(task)
            if found is not None and nursery not in task.child_nurseries[found.nurseries :]:
                return None
        return found

    async def begin_epoch(self) -> None:
        """Stage the number of this owner. A process that is not the owner cannot commit it, so no
        two owners have the same number, also if the records came from another store."""
        self.epoch = max(self.store.epoch, await stored_epoch(self.ledger) + 1)
        key = self.ledger.name("epoch")
        self.commits.open_group().put("counter", key, sealed("counter", key, self.epoch))

    def check_owner(self) -> None:
        """Raise `OwnershipUncertain` if it is not certain that this process owns the store. May be
        called in any thread."""
        if self.failure is None and self.store.is_trusted():
            return
        why = "it was lost" if self.failure is not None else "its lease has run out"
        raise OwnershipUncertain(
            f"it is not certain that this process owns {self.store!r}: {why}; let the exception "
            "leave the step, and Keyrun calls the step again when ownership is certain"
        )

    async def trusted(self) -> None:
        """Return when it is certain that this process owns the store."""
        while not self.store.is_trusted():
            event = trio.Event()
            self.store.when_trusted(event.set)
            await event.wait()

    async def read_counter(self) -> None:
        """Read the admission number and the time at which the last owner of the store stopped."""
        self.next_number = self.opened_at = await stored_counter(self.ledger)
        time, behind = await stored_clock(self.ledger)
        self.steady.at_least(time)
        self.set_back = max(0.0, self.steady() - self.wall() - behind)

    def keep_time(self) -> None:
        """Stage the present time, for the next process that opens the store."""
        key = self.ledger.name("clock")
        group = self.commits.open_group()
        steady = self.steady()
        group.put("counter", key, sealed("counter", key, steady, steady - self.wall()))

    def keep_time_if_set_back(self) -> None:
        """Stage the present time if the wall clock is behind it."""
        if self.steady() - self.wall() > TOLERANCE:
            self.keep_time()

    def check_open(self) -> None:
        """Raise `StoreClosed` if the runtime was closed."""
        if self.closed:
            raise StoreClosed("the runtime was closed; open it again to continue")

    def check_caller(self) -> None:
        """Raise an error if the runtime was closed, or if this is no task of the loop that it runs
        on."""
        if self.closed:
            self.check_open()
        if not on_trio(self.host.thread):
            raise wrong_caller("on Trio")


class LeasedState(PartitionState):
    """The state of a partition in a leased store. Its `stopped` is a gate that asks the clock each
    time, because a process may be suspended between any two lines, and resume as a former owner."""

    def __init__(self, store: Store, resume: Callable[[], None], **options: Any) -> None:
        """`resume` is called when the store is trusted again after something was held."""
        self._stopped = False
        self._resume = resume
        self._is_held = False
        super().__init__(store, **options)

    @property
    def stopped(self) -> bool:
        """Return whether nothing that has effects may begin."""
        if self._stopped:
            return True
        if self.store.is_trusted():
            return False
        if not self._is_held:
            self._is_held = True
            logger.warning(
                "no step begins until it is certain again that this process owns %r",
                self.store,
                extra={"event": "ownership_uncertain"},
            )
            self.store.when_trusted(self._trusted_again)
        return self._is_held

    @stopped.setter
    def stopped(self, value: bool) -> None:
        self._stopped = value

    def _trusted_again(self) -> None:
        self._is_held = False
        logger.info(
            "it is certain again that this process owns %r",
            self.store,
            extra={"event": "ownership_certain"},
        )
        if not self.closed and self.failure is None:
            self._resume()


class StagedTogether:
    """A block whose records are staged as a whole, with the changes of the counts of runs."""

    __slots__ = ("_before", "_counts", "_group", "_marks")

    def __init__(self, group: "Group", counts: RunCounts) -> None:
        self._group = group
        self._counts = counts

    def __enter__(self) -> "Group":
        # First, because an error after the block has begun would leave the group in it.
        self._marks = self._counts.marks()
        self._before = self._group.begin_section()
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        keep = kind is None
        self._group.end_section(self._before, keep=keep)
        if not keep:
            self._counts.undo(self._marks)
