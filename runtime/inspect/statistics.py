"""Statistics: a snapshot of what a runtime is doing."""

from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.policies.circuit_breaker import CircuitStatus
from keyrun.runtime.queue.backpressure import BacklogStatistics
from keyrun.runtime.steps.gate import TurnstileStatus
from keyrun.storage import CommitStatistics

if TYPE_CHECKING:
    from keyrun.runtime.partition import Engine


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
    turnstiles: tuple[TurnstileStatus, ...]
    """Steps with a policy in their way: how many run, and how many wait."""
    waiting_outcomes: int
    """Ends that wait for `on_terminal`."""


def statistics_of(engine: "Engine") -> RuntimeStatistics:
    """The snapshot."""
    return RuntimeStatistics(
        live=len(engine.runs.all_live()),
        keys=len(engine.lines),
        quarantined_keys=len(engine.crashes.quarantined),
        running_steps=engine.slots.total - engine.slots.free,
        waiting_for_slot=engine.slots.waiting,
        backlog=engine.backlog.statistics(),
        commits=engine.store.statistics(),
        circuits=engine.turnstiles.circuits(),
        turnstiles=engine.turnstiles.statuses(),
        waiting_outcomes=engine.outbox.waiting,
    )
