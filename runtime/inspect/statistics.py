"""Statistics: a snapshot of what a runtime is doing."""

import attrs

from keyrun.runtime.host.step_gates import StepGateStatus
from keyrun.runtime.host.watchdog import LoopStatistics
from keyrun.runtime.queue.backpressure import BacklogStatistics
from keyrun.runtime.values import CircuitStatus
from keyrun.storage import CommitStatistics


@attrs.frozen(kw_only=True)
class RuntimeStatistics:
    """Hold a snapshot of what a runtime is doing. `rt.statistics()` returns this."""

    live: int
    """The number of runs in memory."""
    keys: int
    """The number of keys in memory."""
    quarantined_keys: int
    """The number of keys that are quarantined because Keyrun's own code failed."""
    running_steps: int
    """The number of steps that run, that is of used slots."""
    waiting_for_slot: int
    """The number of steps that wait for a slot."""
    loop: LoopStatistics
    """How late the event loop is."""
    backlog: BacklogStatistics
    """Runs that wait to start, and backpressure."""
    commits: CommitStatistics
    """Commits of the store since it was opened."""
    circuits: tuple[CircuitStatus, ...]
    """The circuit breakers of steps that were called so far."""
    gates: tuple[StepGateStatus, ...]
    """The calls of steps that have a rate limit, a concurrency limit, resources or a breaker."""
    waiting_outcomes: int
    """The number of outcomes that wait for `on_terminal`."""
