"""Policies of steps, nodes and workflows, beyond `Retry` and `Limits`, which are in `keyrun`.

A step or node takes a `CircuitBreaker`, a `RateLimit` and the `Resources` that it needs. A workflow
takes a checkpoint policy: `EverySteps`, `EverySeconds` or `Manual`.
"""

from keyrun.runtime.policies.checkpoint import EverySeconds, EverySteps, Manual
from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
from keyrun.runtime.policies.rate_limit import RateLimit
from keyrun.runtime.policies.resources import Resources

__all__ = [
    "CircuitBreaker",
    "EverySeconds",
    "EverySteps",
    "Manual",
    "RateLimit",
    "Resources",
]
