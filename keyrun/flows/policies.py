"""The policies of nodes in a file: their shapes, and the objects that they stand for."""

from collections.abc import Callable, Mapping
from typing import Any

from keyrun.flows.shapes import (
    Choice,
    Either,
    Field,
    Flag,
    MapOf,
    Number,
    Record,
    Text,
    Variants,
    WrongField,
)
from keyrun.runtime.policies.checkpoint import Checkpoint, EverySeconds, EverySteps
from keyrun.runtime.policies.circuit_breaker import CircuitBreaker
from keyrun.runtime.policies.rate_limit import RateLimit
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.values import Priority

COUNT = Number(whole=True, least=1)
SECONDS = Number(above=0, unit="seconds")

_DELAY = Number(least=0, unit="seconds")
_ATTEMPTS = {
    "max_attempts": Field(COUNT, "The number of attempts, including the first. Default 3."),
    "delay": Field(_DELAY, "Seconds before the second attempt. Default 1."),
    "jitter": Field(Number(least=0, most=1), "The random share of a delay. Default 0.25."),
}
_LONGEST = {"max_delay": Field(_DELAY, "The longest delay, in seconds. Default 60.")}
_FACTOR = {"factor": Field(Number(least=1), "The growth of each delay. Default 2.")}
_RETRIES = "a retry policy"
RETRY = Either(
    "none",
    Variants(
        "shape",
        {
            "exponential": Record(
                {**_ATTEMPTS, **_FACTOR, **_LONGEST}, f"{_RETRIES} with the shape 'exponential'"
            ),
            "linear": Record({**_ATTEMPTS, **_LONGEST}, f"{_RETRIES} with the shape 'linear'"),
            "fixed": Record(_ATTEMPTS, f"{_RETRIES} with the shape 'fixed'"),
        },
        about="How the delays grow.",
        default="exponential",
    ),
)
_BREAKER = Record(
    {
        "failure_rate": Field(
            Number(above=0, most=1), "The share of failed calls that opens it. Default 0.5."
        ),
        "minimum_calls": Field(COUNT, "The number of calls before it can open. Default 10."),
        "open_for": Field(SECONDS, "Seconds that it stays open. Default 30."),
        "half_open_successes": Field(COUNT, "The probes that have to succeed. Default 3."),
        "window_calls": Field(COUNT, "The number of last calls that count. Default 100."),
        "window_seconds": Field(SECONDS, "The age of the calls that count. Default 60."),
        "when_open": Field(Choice(("wait", "fail")), "Wait while it is open, or fail."),
    },
    "a circuit breaker",
)
_RATE = Record(
    {
        "count": Field(Number(above=0), "The number of calls.", required=True),
        "per": Field(SECONDS, "The time for that number of calls, in seconds. Default 1."),
        "burst": Field(COUNT, "The number of calls that may start at once after a pause."),
    },
    "a rate limit",
)
CHECKPOINT = Record(
    {
        "steps": Field(COUNT, "Wait for the disk after this number of steps."),
        "seconds": Field(SECONDS, "Wait for the disk after this number of seconds."),
    },
    "a checkpoint policy",
)
RESOURCES = MapOf(shape=Number(above=0))

OF_NODES = {
    "join": Field(
        Choice(("all", "any")), "Wait for all incoming edges, or start with the first one."
    ),
}
"""The options of every node."""
OF_STEPS = {
    "timeout": Field(Either("none", SECONDS), "Seconds for one attempt, or none."),
    "retry": Field(RETRY, "The retry policy, or none."),
    "at_most_once": Field(Flag(), "Never start it a second time, not even after a crash."),
    "shield": Field(Flag(), "Let it finish when the run is cancelled."),
    "breaker": Field(_BREAKER, "A circuit breaker."),
    "fallback": Field(Text(), "The node that runs instead while the circuit breaker is open."),
    "compensate": Field(Text(), "The node that undoes it when the run fails or is cancelled."),
    "rate": Field(_RATE, "A rate limit over all runs."),
    "max_concurrent": Field(COUNT, "The number of calls at the same time, over all runs."),
    "max_waiting": Field(
        COUNT, "The number of calls that may wait before Keyrun holds earlier nodes back."
    ),
    "resources": Field(RESOURCES, "The resources that a call reserves while it runs."),
    "priority": Field(Choice(("high", "normal", "low")), "Which waiting calls start first."),
}
"""The options of nodes that are steps."""


def retry_of(fields: Mapping[str, Any] | str) -> Retry:
    """Return the retry policy that a file describes."""
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
    """Return the checkpoint policy that a file describes."""
    if len(fields) != 1:
        raise ValueError("requires either 'steps' or 'seconds'")
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
    """Return the options for `graph.node` from the fields of a node. Raise `WrongField` if the
    values of one do not fit together."""
    options = {}
    for name in (*OF_NODES, *(OF_STEPS if step else ())):
        if name in fields:
            try:
                options[name] = _MADE[name](fields[name]) if name in _MADE else fields[name]
            except ValueError as error:
                raise WrongField(name, str(error)) from error
    return options
