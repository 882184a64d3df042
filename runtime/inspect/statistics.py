"""Statistics: a snapshot of what a runtime is doing."""

from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.host.step_gates import StepGateStatus
from keyrun.runtime.queue.backpressure import BacklogStatistics
from keyrun.runtime.values import CircuitStatus
from keyrun.storage import CommitStatistics

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition


@attrs.frozen(kw_only=True)
class RuntimeStatistics:
    """A snapshot of what a runtime is doing."""

    live: int
    keys: int
    quarantined_keys: int
    running_steps: int
    waiting_for_slot: int
    backlog: BacklogStatistics
    commits: CommitStatistics
    circuits: tuple[CircuitStatus, ...]
    """The circuit breakers that were asked so far."""
    gates: tuple[StepGateStatus, ...]
    """Steps with a policy in their way: how many run, and how many wait."""
    waiting_outcomes: int
    """Ends that wait for `on_terminal`."""


def statistics_of(partition: "Partition") -> RuntimeStatistics:
    """The snapshot."""
    return RuntimeStatistics(
        live=len(partition.runs.all_live()),
        keys=len(partition.queues),
        quarantined_keys=len(partition.supervisor.quarantined),
        running_steps=partition.slots.total - partition.slots.free,
        waiting_for_slot=partition.slots.waiting,
        backlog=partition.backlog.statistics(),
        commits=partition.store.statistics(),
        circuits=partition.host.gates.circuits(),
        gates=partition.host.gates.statuses(),
        waiting_outcomes=partition.outbox.waiting,
    )
