"""The policies of nodes in a file: their shapes, and what they are in Python."""

from collections.abc import Callable, Mapping
from typing import Any

from keyrun.flows.record import Either, Field, MapOf, Record, Variants
from keyrun.flows.shape import Choice, Flag, Number, Text
from keyrun.runtime.policies.checkpoint import Checkpoint, EverySeconds, EverySteps
from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
from keyrun.runtime.policies.rate_limit import RateLimit
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.values import Priority

COUNT = Number(whole=True, least=1)
SECONDS = Number(above=0)

_TRIES = {
    "max_attempts": Field(COUNT, "Executions in all. Default 3."),
    "delay": Field(Number(least=0), "Seconds before the second attempt. Default 1."),
    "jitter": Field(Number(least=0, most=1), "Share of a delay that is random. Default 0.25."),
}
_LONGEST = {"max_delay": Field(Number(least=0), "Seconds of the longest delay. Default 60.")}
_FACTOR = {"factor": Field(Number(least=1), "How much longer each delay is. Default 2.")}
RETRY = Either(
    "none",
    Variants(
        "shape",
        {
            "exponential": Record({**_TRIES, **_FACTOR, **_LONGEST}),
            "linear": Record({**_TRIES, **_LONGEST}),
            "fixed": Record(_TRIES),
        },
        about="How delays grow.",
        default="exponential",
    ),
)
_BREAKER = Record(
    {
        "failure_rate": Field(
            Number(above=0, most=1), "Share of failed calls that opens it. Default 0.5."
        ),
        "minimum_calls": Field(COUNT, "Calls before it can open. Default 10."),
        "open_for": Field(SECONDS, "Seconds that it stays open. Default 30."),
        "half_open_successes": Field(COUNT, "Probes that have to succeed. Default 3."),
        "window_calls": Field(COUNT, "So many of the last calls count. Default 100."),
        "window_seconds": Field(SECONDS, "Calls of so many seconds count. Default 60."),
        "when_open": Field(Choice(("wait", "fail")), "Wait while it is open, or fail."),
    }
)
_RATE = Record(
    {
        "count": Field(SECONDS, "So many calls.", required=True),
        "per": Field(SECONDS, "In so many seconds. Default 1."),
        "burst": Field(COUNT, "So many at once after a quiet time."),
    }
)
CHECKPOINT = Record(
    {
        "steps": Field(COUNT, "After every so many steps."),
        "seconds": Field(SECONDS, "When so many seconds have passed."),
    }
)
RESOURCES = MapOf(shape=Number(above=0))

OF_NODES = {
    "join": Field(Choice(("all", "any")), "Start when all edges are decided, or with the first."),
}
"""What every node may have."""
OF_STEPS = {
    "timeout": Field(Either("none", SECONDS), "Seconds for one attempt."),
    "retry": Field(RETRY, "How often it is tried, and when."),
    "at_most_once": Field(Flag(), "Never start it twice, also after a crash."),
    "shield": Field(Flag(), "Let it finish when the run is cancelled."),
    "breaker": Field(_BREAKER, "When not to call it for a while."),
    "fallback": Field(Text(), "The node to go to while its breaker is open."),
    "compensate": Field(Text(), "The node that undoes it when the run fails or is cancelled."),
    "rate": Field(_RATE, "How many calls in how much time, over all runs."),
    "max_concurrent": Field(COUNT, "How many calls at once, over all runs."),
    "max_waiting": Field(COUNT, "How many may wait for that before nodes ahead are held back."),
    "resources": Field(RESOURCES, "What a call reserves while it runs."),
    "priority": Field(Choice(("high", "normal", "low")), "Which calls go first where calls wait."),
}
"""What nodes may have that are steps."""


def retry_of(fields: Mapping[str, Any] | str) -> Retry:
    """A retry policy, as a file says it."""
    if isinstance(fields, str):
        return Retry.none()
    given = dict(fields)
    match given.pop("shape", "exponential"):
        case "fixed":
            return Retry.fixed(**given)
        case "linear":
            return Retry.linear(**_renamed(given, "step"))
    return Retry.exponential(**_renamed(given, "base"))


def checkpoint_of(fields: Mapping[str, Any]) -> Checkpoint:
    """How often a run waits for its disk, as a file says it."""
    if len(fields) != 1:
        raise ValueError("a checkpoint is after so many 'steps', or after so many 'seconds'")
    if "steps" in fields:
        return EverySteps(fields["steps"])
    return EverySeconds(fields["seconds"])


def _renamed(given: dict[str, Any], name: str) -> dict[str, Any]:
    if "delay" in given:
        given[name] = given.pop("delay")
    return given


def _rate(fields: Mapping[str, Any]) -> RateLimit:
    return RateLimit(fields["count"], **{name: fields[name] for name in fields if name != "count"})


_MADE: dict[str, Callable[[Any], Any]] = {
    "timeout": lambda value: None if value == "none" else value,
    "retry": retry_of,
    "breaker": lambda value: CircuitBreaker(**value),
    "rate": _rate,
    "resources": lambda value: Resources(**value),
    "priority": lambda value: Priority[value.upper()],
}


def policies_of(fields: Mapping[str, Any], *, step: bool) -> dict[str, Any]:
    """What `graph.node` takes of the fields of a node. Raises `ValueError` where they do not fit
    together."""
    names = [*OF_NODES, *(OF_STEPS if step else ())]
    return {
        name: _MADE[name](fields[name]) if name in _MADE else fields[name]
        for name in names
        if name in fields
    }
