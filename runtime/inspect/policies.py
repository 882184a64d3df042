"""Policies: the circuits, limits and resources of steps, with the calls that run and wait."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.values import CircuitState

if TYPE_CHECKING:
    from keyrun.runtime.host.host import Host
    from keyrun.runtime.host.step_gates import StepGate


@attrs.frozen(kw_only=True)
class BreakerStatus:
    """Describe the circuit breaker of a step."""

    state: CircuitState
    """The state of the circuit."""
    calls: int
    """The number of calls in the window of the breaker."""
    failures: int
    """The number of these calls that failed."""
    failure_rate: float
    """`failures` divided by `calls`."""
    opens_at_rate: float
    """The share of failed calls that opens the circuit."""
    minimum_calls: int
    """The number of calls in the window before the circuit can open."""
    opened: int
    """The number of times that the circuit has opened."""
    opened_at: float | None
    """When the circuit opened, in seconds since the epoch. None unless it is open."""
    retry_at: float | None
    """When an open circuit lets probes through. None unless it is open."""


@attrs.frozen(kw_only=True)
class RateStatus:
    """Describe the rate limit of a step."""

    count: float
    """The number of calls that may start in `per` seconds."""
    per: float
    """The seconds."""
    burst: int
    """The number of calls that may start at once after a pause."""
    waiting: int
    """The number of calls that wait for the rate limit."""


@attrs.frozen(kw_only=True)
class ConcurrencyStatus:
    """Describe a limit of calls that run at once."""

    limit: int
    """The number of calls that may run at once."""
    running: int
    """The number of calls that run."""
    waiting: int
    """The number of calls that wait for the limit."""


@attrs.frozen(kw_only=True)
class StepPolicyStatus:
    """Describe the policies of a step. Policies that it does not have are None."""

    step: str
    """The name of the step."""
    running: int
    """The number of calls that run."""
    waiting: int
    """The number of calls that wait for any policy."""
    held: int
    """The number of nodes that `max_waiting` holds back."""
    breaker: BreakerStatus | None
    """The circuit breaker."""
    rate: RateStatus | None
    """The rate limit."""
    max_concurrent: ConcurrencyStatus | None
    """The concurrency limit."""
    resources: dict[str, float] | None
    """The amount of each resource that a call reserves while it runs, by name."""


@attrs.frozen(kw_only=True)
class ResourceStatus:
    """Describe a resource that steps share."""

    name: str
    """The name of the resource."""
    graph: str | None
    """The name of the graph whose nodes share it. None if all steps share it."""
    total: float
    """The amount that there is."""
    free: float
    """The amount that is not reserved."""
    waiting: int
    """The number of calls that wait for resources of this runtime or graph."""


@attrs.frozen(kw_only=True)
class PolicyStatus:
    """Describe the policies of a runtime."""

    slots: ConcurrencyStatus
    """The slots of `max_concurrent_steps`."""
    steps: tuple[StepPolicyStatus, ...]
    """The steps that have policies and were called since the open."""
    resources: tuple[ResourceStatus, ...]
    """The resources that these steps share."""


def policies(host: "Host", wall: Callable[[], float]) -> PolicyStatus:
    """Return the policies of a runtime."""
    gates = host.gates.known.values()
    quotas = {
        quota: owner for gate in gates for quota, owner in [(gate.quota, gate.owner)] if quota
    }
    slots = host.slots
    return PolicyStatus(
        slots=ConcurrencyStatus(
            limit=slots.total, running=slots.total - slots.free, waiting=slots.waiting
        ),
        steps=tuple(_step(gate, wall() - trio.current_time()) for gate in gates),
        resources=tuple(
            ResourceStatus(
                name=name, graph=owner, total=total, free=quota.free[name], waiting=quota.waiting
            )
            for quota, owner in quotas.items()
            for name, total in quota.total.items()
        ),
    )


def _step(gate: "StepGate", epoch: float) -> StepPolicyStatus:
    """Return the policies of a step. `epoch` is the wall time at which Trio's clock was zero."""
    status, circuit, slots, bucket = gate.status(), gate.circuit, gate.slots, gate.bucket
    breaker = None
    if circuit is not None:
        known, opened = circuit.status(), circuit.opened_at
        breaker = BreakerStatus(
            state=known.state,
            calls=known.calls,
            failures=known.failures,
            failure_rate=known.failure_rate,
            opens_at_rate=circuit.breaker.failure_rate,
            minimum_calls=circuit.breaker.minimum_calls,
            opened=known.opened,
            opened_at=None if opened is None else epoch + opened,
            retry_at=None if opened is None else epoch + opened + circuit.breaker.open_for,
        )
    return StepPolicyStatus(
        step=status.step,
        running=status.running,
        waiting=status.waiting,
        held=status.held,
        breaker=breaker,
        rate=None
        if bucket is None
        else RateStatus(
            count=bucket.rate.count,
            per=bucket.rate.per,
            burst=bucket.rate.room,
            waiting=bucket.waiting,
        ),
        max_concurrent=None
        if slots is None
        else ConcurrencyStatus(
            limit=slots.total, running=slots.total - slots.free, waiting=slots.waiting
        ),
        resources=None if gate.need is None else dict(gate.need),
    )
