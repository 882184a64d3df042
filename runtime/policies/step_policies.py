"""The policies of a step: its options besides timeout and retry, and their checks."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
    from keyrun.runtime.policies.rate_limit import RateLimit
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.values import Priority


class Throttles(TypedDict, total=False):
    """What is in the way of calls. All but `priority` hold for the function over all runs of a
    runtime.

    `breaker`: when not to call it for a while. `rate`: how many calls in how much time.
    `max_concurrent`: how many calls at once. `max_waiting`: how many may wait for one of these;
    beyond, the nodes before it in a graph are held back. `resources`: what a call reserves.
    `priority`: which calls go first where calls wait; that of the run if it is not given.
    """

    breaker: "CircuitBreaker | None"
    rate: "RateLimit | None"
    max_concurrent: int | None
    max_waiting: int | None
    resources: "Resources | None"
    priority: "Priority | None"


class Policies(Throttles, total=False):
    """What `@step` and `.options` take. `compensate`: what undoes the step when the run fails or is
    cancelled; it is called with a `Compensation`."""

    compensate: Callable[..., Any] | None


_KNOWN = (*Throttles.__annotations__, "compensate")
_TYPES = {
    "breaker": ("keyrun.runtime.policies.circuit_breaker", "CircuitBreaker"),
    "rate": ("keyrun.runtime.policies.rate_limit", "RateLimit"),
    "resources": ("keyrun.runtime.policies.resources", "Resources"),
    "priority": ("keyrun.runtime.values", "Priority"),
}
"""The module and the name of the class: whoever uses a policy has imported it."""


def check_policies(policies: Policies) -> None:
    """Raise unless each of them is what it should be."""
    for name, value in policies.items():
        if name not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise TypeError(f"{name!r} is no policy of a step; there are {known}")
        if value is None:
            continue
        if name in ("max_concurrent", "max_waiting"):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        elif name in _TYPES:
            module, cls = _TYPES[name]
            if not isinstance(value, getattr(import_module(module), cls)):
                raise TypeError(f"{name} must be a {cls}, got {value!r}")
        elif not callable(value):
            raise TypeError(f"compensate must be a function or a step, got {value!r}")
