"""The services that a run calls. They are in higher layers, so a run knows them by these protocols.

The wiring of a partition sets one `RunServices` for all runs of the partition.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from keyrun.runtime.definitions.workflow import Workflow
    from keyrun.runtime.records.journal_entry import CallRecord
    from keyrun.runtime.records.submission import StatusRecord, Submission, Summary
    from keyrun.runtime.run.draft import Draft
    from keyrun.runtime.run.inbox import Signal
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.running_step import RunningStep
    from keyrun.runtime.values import ItemCounts, RunStatus
    from keyrun.storage.group import Group


class KeyQueueOfRun(Protocol):
    """The queue of the run's key."""

    paused: bool
    holder: "RunningStep | None"
    group: "Group | None"

    @property
    def key(self) -> str:
        """Return the ordering key."""

    @property
    def others(self) -> bool:
        """Return whether something else of the key could run while the first run waits."""

    @property
    def awake(self) -> bool:
        """Return whether the key's actor is active."""

    def place(self, place: int) -> bytes:
        """Return the record key of a place in this queue."""

    def entered(self) -> None:
        """Record that the first run has begun, or that there is none."""

    def started(self, pending: "Run | None" = None) -> None:
        """Record that one run fewer waits to be started: `pending`, which is marked as started, or
        another one that was removed."""

    def wake(self) -> None:
        """Let the key's actor look at the queue."""

    def wake_up(self, place: int, number: int) -> None:
        """Put a run back that was evicted and has something to do, durably."""

    def evict_head(self, run: "Run") -> None:
        """Record that the first run was evicted while it waits. It still holds the key."""

    def release_memory(self) -> None:
        """Keep only the name of the key while the run that holds it is evicted."""

    def forget_submission(self, number: int) -> None:
        """Read a run from the store when it is driven, because it was changed."""

    def borrow_state(self, borrower: "RunningStep") -> "Draft":
        """Lend the state of the key to one step."""

    def keep_state(self, run: "Run", borrower: "RunningStep") -> None:
        """Stage the state of the key that a step has changed."""


class GraphOfRun(Protocol):
    """One pass over a graph."""

    def node_counts(self) -> dict[str, int]:
        """Return the number of nodes in each state."""

    def item_counts(self) -> "dict[str, ItemCounts]":
        """Return the items of each map that the run has reached."""


class OutputAllowance(Protocol):
    """How many bytes the steps of a run may return."""

    used: int

    def take(self, size: int, step: str) -> None:
        """Use `size` bytes for the output of a step. Raise if that is too much."""


class EvictionOfRun(Protocol):
    """Lets waiting runs leave memory."""

    def consider(self, run: "Run") -> None:
        """Check whether a run may be evicted, because one of its branches began to wait or
        ended."""

    def overtake(self, run: "Run") -> None:
        """Evict a waiting run that yields its key, because another run has come behind it."""

    def keep_in_memory(self, run: "Run") -> None:
        """Keep a run in memory that was about to leave, because it ends."""

    def leave_memory(self, run: "Run") -> bool | None:
        """Stage that a run is evicted, after its coroutine was cancelled."""


class SignalsOfRun(Protocol):
    """The stored signals."""

    @property
    def used(self) -> bool:
        """Return whether any run was sent a signal."""

    async def recall(self, run: "Run") -> None:
        """Put the stored signals of a run into its inbox."""

    def take(self, run: "Run", signal: "Signal") -> None:
        """Stage that a run has taken a signal."""


class ChildrenOfRun(Protocol):
    """The child runs under other keys."""

    @property
    def used(self) -> bool:
        """Return whether any run has children under other keys."""

    async def admit(
        self,
        run: "Run",
        ident: str,
        memory: "CallRecord",
        workflow: "Workflow[Any, Any]",
        input_: Any,
        key: str,
        depth: int,
    ) -> None:
        """Start a child in one commit with the parent's journal entry."""

    async def check_cycle(self, run: "Run", child_id: str, key: str) -> None:
        """Fail a child that would close a cycle of waiting runs."""

    def end_received(self, run: "Run", child_id: str) -> None:
        """Stage that a parent has received the end of a child."""

    def orphan(self, run: "Run", child_id: str) -> None:
        """Cancel a child that its parent no longer waits for."""

    def cancel_children(self, run: "Run") -> None:
        """Cancel the children of a run that ends before them."""

    def ended(
        self, about: "Submission", status: "StatusRecord", group: "Group"
    ) -> "Callable[[], object] | None":
        """Stage the message that notifies a parent of the end of a child. Return a function that
        delivers the message to a parent in memory, to be called when all of the end is staged."""


class OutboxOfRun(Protocol):
    """The ends that wait for the terminal hook."""

    @property
    def collecting(self) -> bool:
        """Return whether ends are kept for a hook."""

    def put(self, group: "Group", submission: "Submission", fields: tuple[Any, ...]) -> None:
        """Stage the end of a run for the hook."""


class DelaysOfRun(Protocol):
    """The runs that wait for their start time."""

    def remove(self, group: "Group", submission: "Submission") -> None:
        """Stage that a delayed run will not start."""


class InstancesOfRun(Protocol):
    """The limits of runs of one workflow."""

    def enter(self, run: "Run") -> bool:
        """Count a run if its workflow has room for it. Return whether it has."""

    def left(self, group: "Group", run: "Run") -> None:
        """Stage that a run no longer counts."""


@attrs.define(kw_only=True)
class RunServices:
    """The services of one partition."""

    eviction: EvictionOfRun
    signals: SignalsOfRun
    children: ChildrenOfRun
    outbox: OutboxOfRun
    delays: DelaysOfRun
    instances: InstancesOfRun | None
    """None if no workflow limits its instances."""
    status_of: "Callable[[Submission, StatusRecord], RunStatus]"
    summarize: "Callable[[Run], Summary | None]"
    """Returns the summary of the journal of a run."""
    fail: Callable[[Exception], None]
    """Stops the partition, because its store failed or Keyrun has a bug."""
    run_ended: "Callable[[Run], None]"
    """Called when the end of a run is durable."""
    run_quarantined: "Callable[[int, StatusRecord], None]"
    """Called with the number and the status of a run when its quarantine is durable."""
