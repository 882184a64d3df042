"""The policies of a step: its options besides timeout and retry, and their checks."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

from keyrun.actors import checks

if TYPE_CHECKING:
    from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
    from keyrun.runtime.policies.rate_limit import RateLimit
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.values import Priority


class Throttles(TypedDict, total=False):
    """The policies that can delay a call; `@step` describes them."""

    breaker: "CircuitBreaker | None"
    rate: "RateLimit | None"
    max_concurrent: int | None
    max_waiting: int | None
    resources: "Resources | None"
    priority: "Priority | None"


class Policies(Throttles, total=False):
    """The policies that `@step` and `.options` take; `@step` describes them."""

    compensate: Callable[..., Any] | None


_KNOWN = (*Throttles.__annotations__, "compensate")
_TYPES = {
    "breaker": ("keyrun.runtime.policies.circuit_breaker", "CircuitBreaker"),
    "rate": ("keyrun.runtime.policies.rate_limit", "RateLimit"),
    "resources": ("keyrun.runtime.policies.resources", "Resources"),
    "priority": ("keyrun.runtime.values", "Priority"),
}
"""The module and the name of each class. Only programs that use a policy import its module."""


def check_policies(policies: Policies) -> None:
    """Raise if a policy is unknown or has the wrong type."""
    for name, value in policies.items():
        if name not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise TypeError(f"{name!r} is not a policy of a step; the policies are {known}")
        if value is None:
            continue
        if name in ("max_concurrent", "max_waiting"):
            if not checks.is_count(value, 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        elif name in _TYPES:
            module, cls = _TYPES[name]
            if not isinstance(value, getattr(import_module(module), cls)):
                raise TypeError(f"{name} must be a {cls}, got {value!r}")
        elif not callable(value):
            raise TypeError(f"compensate must be a function or a step, got {value!r}")
