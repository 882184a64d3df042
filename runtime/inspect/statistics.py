"""Statistics: a snapshot of what a runtime is doing."""

import attrs

from keyrun.runtime.host.step_gates import StepGateStatus
from keyrun.runtime.queue.backpressure import BacklogStatistics
from keyrun.runtime.values import CircuitStatus
from keyrun.storage import CommitStatistics


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
